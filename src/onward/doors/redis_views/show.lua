#!lua flags=allow-oom
-- Writes the present view of some tasks under the seeds' names. A view is written whole and compared with
-- where the task stood before, so that a call that is repeated after a crash changes nothing. Also in
-- a Redis that is full: the ledger forgets no task whose events were not read here, so that a view
-- that cannot be written would keep memory from ever being free again.
--
-- KEYS[1] is the prefix; ARGV[1] the number of the one server that may write; ARGV[2] the tasks, as
-- msgpack (writer.py, `Item`). Returns how many tasks were written (a long call stops early, the rest
-- comes again), the names that held something foreign, and how long it took; -1: another server
-- writes by now.
--
-- The key space, after the prefix. The seeds' names:
--   task:{id}                        hash
--   task:{id}:result                 string
--   session:{session}:tasks          set of ids
--   tasks:pending:{lane}[:{queue}]   list of ids, the next one first
--   tasks:scheduled                  zset of ids by seconds
--   dlq:tasks, dlq:task:{id}         list of ids, and a hash each
-- and our own, which nobody else writes:
--   onward:view:writer               string: who may write
--   onward:view:places               hash: by id, where it stands and since when
--   onward:view:look                 zset of ids to look at again, by the instant
--   onward:set-aside:{name}          whatever stood under a seed's name and was of another type
local P, ITEMS = KEYS[1], cmsgpack.unpack(ARGV[2])
local PLACES, LOOK, SEP = P .. 'onward:view:places', P .. 'onward:view:look', '\31'
local SLICE_US = 2000 -- Redis does nothing else meanwhile
local KEPT_MS = 7 * 24 * 3600 * 1000
local AGAIN_MS = 5000
local NEAR = 1000
local SCHEDULED, DEAD = 'tasks:scheduled', 'dlq:tasks'
local aside = {}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A command on a key of ours; what stands there and is of another type makes room first.
local function put(command, name, ...)
  local reply = redis.pcall(command, P .. name, ...)
  if type(reply) ~= 'table' or not reply.err then return end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
  local kept = P .. 'onward:set-aside:' .. name
  redis.call('RENAME', P .. name, kept)
  redis.call('PEXPIRE', kept, KEPT_MS)
  aside[#aside + 1] = name
  redis.call(command, P .. name, ...)
end

local function stood(id)
  local found = redis.call('HGET', PLACES, id)
  if not found then return nil end
  local at = string.find(found, SEP, 1, true)
  return string.sub(found, at + 1), tonumber(string.sub(found, 1, at - 1))
end

-- From the nearer end: removing costs as many steps as there are ids on the way.
local function remove(name, id, since)
  local count, many = 1, redis.pcall('LLEN', P .. name)
  if type(many) ~= 'number' then return end
  if many > NEAR then
    local _, first = stood(redis.call('LINDEX', P .. name, 0))
    local _, last = stood(redis.call('LINDEX', P .. name, -1))
    if first and last and last - since < since - first then count = -1 end
  end
  redis.call('LREM', P .. name, count, id)
end

local function leave(id, name, since)
  if name == SCHEDULED then redis.pcall('ZREM', P .. name, id)
  else remove(name, id, since) end
  if name == DEAD then redis.call('DEL', P .. 'dlq:task:' .. id) end
end

local function stand(item)
  local id, name = item.id, item.place or ''
  local before, since = stood(id)
  if before and before ~= name then leave(id, before, since) end
  if name == SCHEDULED then put('ZADD', name, item.score or 0, id)
  elseif name ~= '' and before ~= name then put(item.front and 'LPUSH' or 'RPUSH', name, id) end
  if name == DEAD then put('HSET', 'dlq:task:' .. id, unpack(item.letter)) end
  if name == '' then
    if before then redis.call('HDEL', PLACES, id) end
  elseif before ~= name then
    redis.call('HSET', PLACES, id, string.format('%.0f', item.since or 0) .. SEP .. name)
  end
end

local function live(name, life_ms)
  if life_ms and life_ms > 0 then redis.call('PEXPIRE', P .. name, life_ms)
  else redis.call('PERSIST', P .. name) end
end

local function forget(id)
  local name = 'task:' .. id
  local session = redis.pcall('HGET', P .. name, 'session_id')
  if type(session) == 'string' and session ~= '' then
    redis.pcall('SREM', P .. 'session:' .. session .. ':tasks', id)
  end
  redis.call('DEL', P .. name, P .. name .. ':result')
end

local function show(item)
  stand(item)
  if not item.fields then return forget(item.id) end
  local name = 'task:' .. item.id
  put('HSET', name, unpack(item.fields))
  live(name, item.life_ms)
  if item.result then redis.call('SET', P .. name .. ':result', item.result, 'PX', item.life_ms) end
  if item.session then
    local index = 'session:' .. item.session .. ':tasks'
    put('SADD', index, item.id)
    live(index, item.life_ms)
  end
end

if redis.call('GET', P .. 'onward:view:writer') ~= ARGV[1] then return { -1, aside } end
local start = now_us()
for at, item in ipairs(ITEMS) do
  show(item)
  if item.again then redis.call('ZADD', LOOK, start / 1000 + AGAIN_MS, item.id) end
  local took = now_us() - start
  if took > SLICE_US then return { at, aside, took } end
end
return { #ITEMS, aside, 0 }
