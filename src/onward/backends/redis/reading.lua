-- What is only read. The second half of the library: ledger.lua comes before it.

-- A task as a map of strings, its events left out; false: no such task.
local function read_task(id)
  local key = key_of(id)
  local flat = call('HGETALL', key)
  if #flat == 0 then return false end
  local task = { id = id }
  for at = 1, #flat, 2 do
    if not string.find(flat[at], '^e%d') then task[flat[at]] = flat[at + 1] end
  end
  task.payload = long_field(key, 'payload', task.payload)
  task.result = long_field(key, 'result', task.result)
  return task
end

local function get(keys, args)
  local _, request = begin(keys, args)
  local tasks = {}
  for at, id in ipairs(request[2]) do tasks[at] = read_task(id) end
  return cmsgpack.pack(tasks)
end

local function due(keys, args)
  local now, request = begin(keys, args)
  local tasks = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'onward:alarms', '-inf', now, 'LIMIT', 0, request[2])) do
    local task = read_task(id)
    if task then tasks[#tasks + 1] = task end
  end
  return cmsgpack.pack(tasks)
end

local SIEVE = { 'state', 'profile', 'type', 'queue', 'session', 'parent', 'fingerprint',
  'waiting_for', 'approval' }

local function within(set, value)
  if not set or #set == 0 then return true end
  for _, one in ipairs(set) do if one == value then return true end end
  return false
end

-- Told from a few fields, because most tasks are only passed by.
local function might_hold(id, query)
  local h = call('HMGET', key_of(id), unpack(SIEVE))
  if not (h[2] and within(query.states, h[1] or 'queued') and within(query.profiles, h[2])) then
    return false
  end
  for at = 3, 8 do
    if query[SIEVE[at]] and query[SIEVE[at]] ~= h[at] then return false end
  end
  local said = query.approval and '"status":"' .. (query.approval == 'all' and '' or query.approval .. '"')
  return not said or (h[9] and string.find(h[9], said, 1, true) ~= nil)
end

local function mentions(task, text)
  for _, name in ipairs({ 'id', 'type', 'payload', 'error' }) do
    if task[name] and string.find(task[name], text, 1, true) then return true end
  end
  return false
end

-- Walks the index from a place downwards, at most `steps` tasks; returns what it found, each with its
-- birth place, and where it stopped (false: at the end).
local function find(keys, args)
  local _, request = begin(keys, args)
  local query, from, steps = request[2], request[3] or '+inf', request[4]
  local flat = call('ZREVRANGEBYSCORE', P .. 'onward:index', from, '-inf', 'WITHSCORES', 'LIMIT', 0, steps)
  local found, stopped = {}, false
  for at = 1, #flat, 2 do
    if might_hold(flat[at], query) then
      local task = read_task(flat[at])
      if not query.text or mentions(task, query.text) then found[#found + 1] = { flat[at + 1], task } end
    end
    if #found > query.limit then break end
    if at == 2 * steps - 1 then stopped = flat[at + 1] end
  end
  return cmsgpack.pack({ found, stopped })
end

local function position(keys, args)
  local _, request = begin(keys, args)
  local id, far = request[2], request[3]
  local h = head_of(key_of(id))
  if not h or h.state ~= 'queued' then return cmsgpack.pack(false) end
  local before = 0
  for higher = 0, h.priority - 1 do
    for _, lane in ipairs(LANES) do
      before = before + call('LLEN', lane_key(h.queue, higher, lane))
    end
  end
  local at = call('LPOS', lane_key(h.queue, h.priority, h.lane), id, 'MAXLEN', far)
  return cmsgpack.pack(math.min(before + (at or far), far) + 1)
end

local function history(keys, args)
  local _, request = begin(keys, args)
  local id, after, limit = request[2], request[3], request[4]
  local key = key_of(id)
  local have = tonumber(call('HGET', key, 'events') or 0)
  local events = {}
  for n = after + 1, math.min(have, after + limit) do
    local at = call('HGET', key, 'e' .. n)
    local entry = call('XRANGE', P .. 'onward:events', at, at)[1]
    if entry then
      local f = entry[2] -- values at even places: task, n, generation, type, instant, data
      events[#events + 1] = { n, tonumber(f[6]), f[8], tonumber(f[10]), f[12] }
    end
  end
  return cmsgpack.pack(events)
end

register('get', get, 'no-writes')
register('due', due, 'no-writes')
register('find', find, 'no-writes')
register('position', position, 'no-writes')
register('history', history, 'no-writes')
