-- What is only read. The last part of the library.

local SOME = 64 -- partitions of a lane

-- A task as a map of strings, its events left out; false: no such task. Raises if it is no task.
local function read_task(id)
  local flat = call('HGETALL', key_of(id))
  if #flat == 0 then return false end
  local task = { id = id }
  for at = 1, #flat, 2 do
    if not string.find(flat[at], '^e%d') then task[flat[at]] = flat[at + 1] end
  end
  task.payload = long_field(id, 'payload', task.payload)
  task.result = long_field(id, 'result', task.result)
  return task
end

-- The same of one among others, who are read whatever this one is: false, too, if it is no task.
local function try_task(id) return attempt('read', id, read_task, id) or false end

-- Some fields of one among others.
local function peek(id, fields) return attempt('read', id, call, 'HMGET', key_of(id), unpack(fields)) or NONE end

local function get(keys, args)
  local _, request = begin(keys, args)
  local tasks = {}
  for at, id in ipairs(request[2]) do tasks[at] = try_task(id) end
  return cmsgpack.pack(tasks)
end

local function bytes_of(task)
  local sum = 0
  for _, value in pairs(task) do sum = sum + #value end
  return sum
end

-- Also the ids that are due and have no task that could be read.
local function due(keys, args)
  local now, request = begin(keys, args)
  local limit, most, without, found, tasks, odd, spent = request[2], request[4], {}, {}, {}, {}, 0
  for _, id in ipairs(request[3]) do without[id] = true end
  for _, name in ipairs({ 'onward:running', 'onward:alarms' }) do
    local upto = limit + #request[3]
    local flat = call('ZRANGEBYSCORE', P .. name, '-inf', now, 'WITHSCORES', 'LIMIT', 0, upto)
    for at = 1, #flat, 2 do
      if not without[flat[at]] then found[#found + 1] = { flat[at], tonumber(flat[at + 1]) } end
    end
  end
  table.sort(found, function(a, b) return a[2] < b[2] end)
  for at = 1, math.min(limit, #found) do
    local id = found[at][1]
    local task = try_task(id)
    if task then tasks[#tasks + 1] = task else odd[#odd + 1] = id end
    spent = spent + (task and bytes_of(task) or 0)
    if spent > most then break end
  end
  return cmsgpack.pack({ tasks, odd })
end

-- What is only offered is shown as queued.
local function shown(state, lease_until)
  return state == 'running' and not lease_until and 'queued' or state
end

local SIEVE = { 'state', 'profile', 'type', 'queue', 'session', 'owner', 'parent', 'fingerprint',
  'waiting_for', 'partition', 'batch', 'approval', 'lease_until', 'tags', 'created_at', 'finished_at' }
local PARTITION = 10 -- among those; a task without has ''

local function within(set, value)
  if not set or #set == 0 then return true end
  for _, one in ipairs(set) do if one == value then return true end end
  return false
end

-- `tags` is a list in JSON.
local function has_all(wanted, tags)
  if not wanted or #wanted == 0 then return true end
  local ok, there = pcall(cjson.decode, tags)
  for _, tag in ipairs(wanted) do
    if not (ok and within(there, tag)) then return false end
  end
  return true
end

-- Whether an instant is within; `made` is nil where there is none.
local function between(made, from, before)
  if (from or before) and not made then return false end
  return not (from and made < from) and not (before and made >= before)
end

-- Whether a query leaves out what has these fields.
local function is_left_out(without, h)
  for at = 3, 11 do
    local values = without[SIEVE[at]]
    if values and #values > 0 and within(values, h[at] or at == PARTITION and '') then return true end
  end
  for _, tag in ipairs(without.tags or NONE) do
    if has_all({ tag }, h[14]) then return true end
  end
  return false
end

-- By a few fields, because most tasks do not match.
local function might_hold(id, query)
  local h = peek(id, SIEVE)
  local state, among = h[1] or 'queued', query.offered
  if among == nil or shown(state, h[13]) == state then among = within(query.states, state) end
  if not (h[2] and among and within(query.profiles, h[2])) then return false end
  for at = 3, 11 do
    local wanted = query[SIEVE[at]]
    if wanted and wanted ~= (h[at] or at == PARTITION and '') then return false end
  end
  if not between(tonumber(h[15] or 0), query.created_from, query.created_before) then return false end
  if not between(tonumber(h[16]), query.finished_from, query.finished_before) then return false end
  if query.without and is_left_out(query.without, h) then return false end
  local status = query.approval and '"status":"' .. (query.approval == 'all' and '' or query.approval .. '"')
  return (not status or h[12] and string.find(h[12], status, 1, true) ~= nil) and has_all(query.tags, h[14])
end

local function mentions(task, text)
  for _, name in ipairs({ 'id', 'type', 'payload', 'error' }) do
    if task[name] and string.find(task[name], text, 1, true) then return true end
  end
  return false
end

-- States whose tasks stand somewhere by themselves, and how to read them all.
local STAND = {
  running = function() return call('ZRANGE', P .. 'onward:running', 0, -1) end,
  scheduled = function() return call('ZRANGE', P .. 'onward:scheduled', 0, -1) end,
  dead = function() return call('ZRANGE', P .. 'onward:dead', 0, -1) end,
}

-- How many tasks there are by state.
local function by_state()
  local sums, flat = {}, call('HGETALL', P .. 'onward:counts')
  for at = 1, #flat, 2 do
    local state = string.match(flat[at], '([^:]*)$')
    sums[state] = (sums[state] or 0) + tonumber(flat[at + 1])
  end
  return sums
end

-- The ids of all tasks in these states; nil if they are too many, or stand among others.
local function standing(query, most)
  local states, many, apart, ids = { unpack(query.states) }, 0, true, {}
  if #states == 0 then return nil end
  if query.offered then states[#states + 1] = 'running' end
  local sums = by_state()
  for _, state in ipairs(states) do
    many = many + (sums[state] or 0)
    apart = apart and STAND[state]
  end
  if many == 0 then return ids end
  if not apart or many > most then return nil end
  for _, state in ipairs(states) do
    for _, id in ipairs(STAND[state]()) do ids[#ids + 1] = id end
  end
  if #ids > most then return nil end
  return ids
end

-- The shortest of the indexes that have all tasks which match.
local function index_of(query)
  local names, least, shortest = {}, nil, nil
  if query.session then names[1] = P .. 'onward:session:' .. query.session end
  if query.batch then names[#names + 1] = P .. 'onward:in-batch:' .. query.batch end
  for _, tag in ipairs(query.tags or NONE) do names[#names + 1] = P .. 'onward:tag:' .. tag end
  if #names < 2 then return names[1] end
  for _, name in ipairs(names) do
    local many = call('ZCARD', name)
    if not least or many < least then least, shortest = many, name end
  end
  return shortest
end

-- What to look at, newest first: ids and birth places by turns, `steps` of each at most.
local function candidates(query, after, steps)
  local of = index_of(query)
  local index = of or P .. 'onward:index'
  local ids = not of and standing(query, steps)
  if not ids then
    local from = after and '(' .. after or '+inf'
    return call('ZREVRANGEBYSCORE', index, from, '-inf', 'WITHSCORES', 'LIMIT', 0, steps)
  end
  if #ids == 0 then return ids end
  local found, flat = {}, {}
  for at, place in ipairs(call('ZMSCORE', index, unpack(ids))) do
    if place and (not after or tonumber(place) < tonumber(after)) then found[#found + 1] = { ids[at], place } end
  end
  table.sort(found, function(a, b) return tonumber(a[2]) > tonumber(b[2]) end)
  for at, one in ipairs(found) do flat[2 * at - 1], flat[2 * at] = one[1], one[2] end
  return flat
end

-- Looks at `steps` tasks at most, from a place downwards; returns what it found, each with its birth
-- place, and where it stopped (false: at the end). The task that takes what it has read past `most_bytes`
-- is the last, also if it does not match: Redis serves no other client meanwhile.
local function find(keys, args)
  local _, request = begin(keys, args)
  local query, steps = request[2], request[4]
  local flat = candidates(query, request[3], steps)
  local found, stopped, spent = {}, false, 0
  for at = 1, #flat, 2 do
    if might_hold(flat[at], query) then
      local task = try_task(flat[at])
      if task and (not query.text or mentions(task, query.text)) then
        found[#found + 1] = { flat[at + 1], task }
      end
      spent = spent + (task and bytes_of(task) or 0)
    end
    if #found > query.limit then break end
    if at == 2 * steps - 1 or spent > query.most_bytes and at + 1 < #flat then
      stopped = flat[at + 1]
      break
    end
  end
  return cmsgpack.pack({ found, stopped })
end

-- How many of a list stand before this place, by halves: a list goes by place.
local function many_before(line, place)
  local low, high = 0, call('LLEN', line)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other = tonumber(call('HGET', key_of(call('LINDEX', line, middle)), 'place') or 0)
    if other < place then low = middle + 1 else high = middle end
  end
  return low
end

local function position(keys, args)
  local _, request = begin(keys, args)
  local id, far = request[2], request[3]
  local h = whole_head_of(key_of(id))
  if not h or h.state ~= 'queued' then return cmsgpack.pack(false) end
  local partition, before = h.partition or '', 0
  for higher = 0, h.priority - 1 do
    for _, lane in ipairs(LANES) do
      for _, line in ipairs(lines_of(lane_name(h.queue, higher, lane), partition)) do
        before = before + call('LLEN', line)
      end
    end
  end
  local found = false
  for _, line in ipairs(lines_of(lane_name(h.queue, h.priority, h.lane), partition)) do
    local at = not found and before < far and call('LPOS', line, id, 'MAXLEN', far)
    found = found or at
    before = before + (at or many_before(line, h.place))
  end
  return cmsgpack.pack(math.min(found and before or far, far) + 1)
end

-- The partitions of a lane that are looked at where all of them would be too many: those whose turn is
-- next, and those that come back next.
local function some_partitions(name)
  local found, met = { '' }, { [''] = true }
  for _, of in ipairs({ 'onward:ring:', 'onward:out:' }) do
    for _, partition in ipairs(call('ZRANGE', P .. of .. name, 0, SOME - 1)) do
      if not met[partition] then found[#found + 1] = partition end
      met[partition] = true
    end
  end
  return found
end

local function oldest_in(name, earliest)
  for _, partition in ipairs(some_partitions(name)) do
    local id = call('LINDEX', line_of(name, partition), 0)
    local h = id and peek(id, { 'queued_at', 'created_at' }) or NONE
    local since = tonumber(h[1] or h[2] or 0) or 0
    if since > 0 and (earliest == 0 or since < earliest) then earliest = since end
  end
  return earliest
end

-- By queue: the instant from which the first of each of its lanes is queued, the earliest; 0: none is.
-- Of a lane with more than SOME partitions in its ring, or out, it is that of the first ones of each.
local function oldest(keys, args)
  local _, request = begin(keys, args)
  local found = {}
  for at, queue in ipairs(request[2]) do
    found[at] = 0
    for priority = 0, 2 do
      for _, lane in ipairs(LANES) do
        for _, name in ipairs(names_of_lane(lane_name(queue, priority, lane))) do
          found[at] = oldest_in(name, found[at])
        end
      end
    end
  end
  return cmsgpack.pack(found)
end

-- From when on rates let the next task of a lane start, if they and nothing else hold it back: FOREVER
-- otherwise. 0: they do not.
local function lane_start_at(lane, now)
  local earliest = FOREVER
  for _, score in ipairs({ call('ZRANGE', P .. 'onward:out:' .. lane.name, 0, 0, 'WITHSCORES')[2] }) do
    earliest = tonumber(score)
  end
  local first = call('ZRANGE', P .. 'onward:ring:' .. lane.name, 0, 0)[1]
  for _, partition in ipairs(first and first ~= '' and { '', first } or { '' }) do
    local id = call('LINDEX', line_of(lane.name, partition), 0)
    if id then
      local type_, costs, latest = call('HGET', key_of(id), 'type'), costs_of(id, lane.rated), 0
      for _, bounds in ipairs({ lane.all, lane.each, lane.others }) do
        for _, bound in ipairs(bounds) do
          if bounds ~= lane.others or bound.types[type_] then
            latest = math.max(latest, blocked_until({ bound }, partition, costs, now) or 0)
          end
        end
      end
      earliest = math.min(earliest, latest)
    end
  end
  return earliest
end

-- By queue, in the order of the wants; false: its next task waits for no rate.
local function start_at(keys, args)
  local now, request = begin(keys, args)
  local found = {}
  prepare_limits(request[3])
  for at, want in ipairs(request[2]) do
    found[at] = FOREVER
    for _, lane in ipairs(want.bounds and lanes_of(want) or NONE) do
      found[at] = math.min(found[at], lane_start_at(lane, now))
    end
  end
  return cmsgpack.pack(found)
end

local function usage(keys, args)
  local now, request = begin(keys, args)
  local found = {}
  prepare_limits(request[3])
  for at, bound in ipairs(request[3]) do found[at] = usage_of(bound, request[2], now) end
  return cmsgpack.pack(found)
end

local function open_approvals(keys, args)
  local _, request = begin(keys, args)
  local found = {}
  for _, id in ipairs(call('ZRANGE', P .. 'onward:approvals', 0, request[2] - 1)) do
    local h = peek(id, { 'generation', 'type', 'queued_at', 'created_at' })
    if h[2] then
      found[#found + 1] = { id, tonumber(h[1] or 1), h[2], tonumber(h[3] or h[4] or 0) }
    end
  end
  return cmsgpack.pack(found)
end

-- What `record` wrote, after the number.
local EVENT = '^%d+' .. SEP .. '(%d+)' .. SEP .. '([^' .. SEP .. ']*)' .. SEP .. '(%d+)' .. SEP .. '(.*)$'

-- Returns also how far it came, and whether there are more.
local function history(keys, args)
  local _, request = begin(keys, args)
  local id, after, limit, most = request[2], request[3], request[4], request[5]
  local key = key_of(id)
  local have = tonumber(call('HGET', key, 'events') or 0)
  local events, spent, n = {}, 0, after
  while n < math.min(have, after + limit) and spent <= most do
    n = n + 1
    local at = call('HGET', key, 'e' .. n) or '0-0'
    local entry = call('XRANGE', LOG, at, at)[1]
    if entry then
      local generation, type_, moment, data = string.match(entry[2][4], EVENT)
      events[#events + 1] = { n, tonumber(generation), type_, tonumber(moment), data }
      spent = spent + #entry[2][4]
    end
  end
  return cmsgpack.pack({ events, n, n < have })
end

local SESSION = { 'state', 'created_at', 'started_at', 'finished_at', 'lease_until' }

-- One session's tasks: how many, of the newest how many in each state, and when they last changed.
local function tally_session(session, counted)
  local tasks, states, last = P .. 'onward:session:' .. session, {}, 0
  local place = call('ZSCORE', P .. 'onward:sessions', session)
  if not place then return false end
  for _, id in ipairs(call('ZREVRANGE', tasks, 0, counted - 1)) do
    local h = peek(id, SESSION)
    local state = shown(h[1] or 'queued', h[5])
    states[state] = (states[state] or 0) + 1
    for moment = 2, 4 do last = math.max(last, tonumber(h[moment] or 0)) end
  end
  return { session, call('ZCARD', tasks), states, last, tonumber(place) }
end

local function sessions(keys, args)
  local _, request = begin(keys, args)
  local after, limit, counted = request[2], request[3], request[4]
  local from, found = after and '(' .. after or '+inf', {}
  local names = call('ZREVRANGEBYSCORE', P .. 'onward:sessions', from, '-inf', 'LIMIT', 0, limit)
  for at, name in ipairs(names) do found[at] = tally_session(name, counted) end
  return cmsgpack.pack(found)
end

local function session(keys, args)
  local _, request = begin(keys, args)
  return cmsgpack.pack(tally_session(request[2], request[3]))
end

register('get', get, 'no-writes')
register('sessions', sessions, 'no-writes')
register('session', session, 'no-writes')
register('due', due, 'no-writes')
register('find', find, 'no-writes')
register('position', position, 'no-writes')
register('oldest', oldest, 'no-writes')
register('start_at', start_at, 'no-writes')
register('usage', usage, 'no-writes')
register('open_approvals', open_approvals, 'no-writes')
register('history', history, 'no-writes')
