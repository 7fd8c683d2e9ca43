-- Compares the rows of tasks with where the tasks stand; mends what disagrees if ARGV[2] is 'yes'.
-- The row is right: lists, zsets and counts are made to say the same. One call looks at some ids and
-- is over in milliseconds. ARGV[1] says at what; the answer is a list of faults, by turns what is wrong
-- and where, and for `tasks` also how many belong under each count, into each queue's list, and into the
-- hashes of what occupies.

local P, what, mends = KEYS[1] .. 'onward:', ARGV[1], ARGV[2] == 'yes'
local call = redis.call
local FOREVER, SEP = 9e15, '\31'
local faults = {}

local function fault(wrong, where, ...)
  faults[#faults + 1], faults[#faults + 2] = wrong, where
  if mends and ... then call(...) end
end

-- The list of its partition, and that of its type there, if that was passed over.
local function list_of(h)
  local lane, partition = (h[4] or '1') .. ':' .. (h[3] or 'primary') .. ':' .. h[2], h[16] or ''
  local name = partition == '' and lane or lane .. SEP .. partition
  return name, lane .. SEP .. partition .. SEP .. h[10]
end

-- Nil: it is no task, or not all of one.
local function row_of(id)
  local key = P .. 'task:' .. id
  if call('TYPE', key).ok ~= 'hash' then return nil end
  local h = call('HMGET', key, 'state', 'queue', 'lane', 'priority', 'place', 'run_at', 'due_at',
    'finished_at', 'lease_until', 'type', 'profile', 'payload', 'created_at',
    'waiting_for', 'queued_at', 'partition', 'strict', 'started_at')
  local whole = h[2] and h[10] and h[11] and h[12] and tonumber(h[5]) and tonumber(h[13])
    and (not h[7] or tonumber(h[7])) and (not h[6] or tonumber(h[6]))
  if whole and h[12] == '' then whole = call('EXISTS', P .. 'payload:' .. id) == 1 end
  return whole and h or nil
end

-- It is to be in this zset with this score, or, without one, not at all.
local function be(zset, id, score)
  local found = call('ZSCORE', P .. zset, id)
  if score and tonumber(found or -1) ~= score then
    fault('not in onward:' .. zset .. ' as its row says', id, 'ZADD', P .. zset, score, id)
  elseif found and not score then
    fault('in onward:' .. zset .. ' by mistake', id, 'ZREM', P .. zset, id)
  end
end

-- As limits.lua counts it: by hash and field.
local function occupy(use, h)
  local runs = h[1] == 'running'
  if not runs and not (h[1] == 'scheduled' and h[17] and h[18]) then return end
  local queue, type_, partition = h[2], h[10], h[16] or ''
  local inside = partition == '' and queue or queue .. SEP
  local function count(hash, field)
    use[hash] = use[hash] or {}
    use[hash][field] = (use[hash][field] or 0) + 1
  end
  count('type:' .. type_, inside)
  if not runs then count('more', queue) end
  if partition ~= '' then
    count('in:' .. queue .. SEP .. partition, type_)
    count('more', inside)
  end
end

local function tasks(ids, from)
  local counts, lists, use = {}, {}, {}
  local function count(into, name) into[name] = (into[name] or 0) + 1 end
  for at = from, #ids do
    local id = ids[at]
    local h = row_of(id)
    if not h then
      if call('EXISTS', P .. 'task:' .. id) == 0 then
        fault('no such task, in onward:index', id, 'ZREM', P .. 'index', id)
      else fault('its row cannot be read', id, 'ZADD', P .. 'aside', 'NX', 0, id) end
    else
      local state, due_at = h[1] or 'queued', tonumber(h[7])
      local name = h[2] .. ':' .. (h[3] or 'primary')
      count(counts, state == 'queued' and name .. ':queued' or h[2] .. ':' .. state)
      if state == 'running' and not h[9] then count(counts, name .. ':offered') end
      if state == 'queued' then
        local name = list_of(h)
        count(lists, name)
      end
      occupy(use, h)
      be('running', id, state == 'running' and (due_at or FOREVER))
      be('alarms', id, state ~= 'running' and due_at)
      be('scheduled', id, state == 'scheduled' and (tonumber(h[6]) or due_at or 0))
      -- The instant of its last death; its row may hold that of an earlier one.
      local died = state == 'dead' and (call('ZSCORE', P .. 'dead', id) or h[8] or 0)
      be('dead', id, died and tonumber(died))
      local asked = state == 'waiting' and h[14] == 'approval'
        and (call('ZSCORE', P .. 'approvals', id) or h[15] or h[13])
      be('approvals', id, asked and tonumber(asked))
      be('aside', id, false)
    end
  end
  return counts, lists, use
end

-- Of a list, so many from a place on; returns how many of them belong there. Whether one stands there
-- twice, or in the list of its partition, too, is looked for only where there are too many: for each the
-- list is walked.
local function list(name, from, many, twice)
  local kept, met, key = 0, {}, P .. 'queue:' .. name
  local function is_twice(id, h)
    if call('LPOS', key, id) < from then return true end
    local line = list_of(h)
    return line ~= name and call('LPOS', P .. 'queue:' .. line, id)
  end
  for _, id in ipairs(call('LRANGE', key, from, from + many - 1)) do
    local h = row_of(id)
    local line, passed
    if h then line, passed = list_of(h) end
    if not (h and (h[1] or 'queued') == 'queued' and (line == name or passed == name)) then
      fault('in queue ' .. name .. ' by mistake', id, 'LREM', key, 0, id)
    elseif met[id] or twice and is_twice(id, h) then
      fault('twice in its queue', id, 'LREM', key, -1, id)
    else kept = kept + 1 end
    met[id] = true
  end
  return kept
end

-- Those of these lists, by place.
local function sort(names, ids, from)
  for at = from, #ids do
    local h = row_of(ids[at])
    local name = h and (h[1] or 'queued') == 'queued' and list_of(h)
    if name and names[name] then call('ZADD', P .. 'sorting:' .. name, h[5], ids[at]) end
  end
end

-- A list anew from those, some at a time; returns how many.
local function refill(name, many)
  local popped, ids = call('ZPOPMIN', P .. 'sorting:' .. name, many), {}
  for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
  if #ids > 0 then call('RPUSH', P .. 'queue:' .. name, unpack(ids)) end
  return #ids
end

if what == 'tasks' then
  return { faults, cjson.encode({ tasks(ARGV, 3) }) }
elseif what == 'list' then
  return { faults, list(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == 'yes') }
elseif what == 'sort' then sort(cjson.decode(ARGV[3]), ARGV, 4)
elseif what == 'refill' then
  return { faults, refill(ARGV[3], tonumber(ARGV[4])) }
elseif what == 'strangers' then
  for at = 4, #ARGV do
    if call('EXISTS', P .. 'task:' .. ARGV[at]) == 0 then
      fault('no such task, in onward:' .. ARGV[3], ARGV[at], 'ZREM', P .. ARGV[3], ARGV[at])
    end
  end
elseif what == 'unlisted' then
  for at = 3, #ARGV do
    local h = row_of(ARGV[at])
    if h and not call('ZSCORE', P .. 'index', ARGV[at]) then
      fault('not in onward:index', ARGV[at], 'ZADD', P .. 'index', h[5], ARGV[at])
    end
  end
end
return { faults }
