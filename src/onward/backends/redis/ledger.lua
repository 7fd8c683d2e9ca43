#!lua name=onward
-- The ledger in Redis. Every function takes one key, the prefix ("" or "{onward}:" for a cluster, so
-- that all keys share a slot), and one msgpack argument with many items; it checks first and writes
-- last, because a script that fails half way is not rolled back. Nothing here decides: a move says
-- what becomes of a task, and is refused unless state, fence and rev are what it expected.
--
-- The key space, after the prefix:
--   task:{id}                     hash: the fields of core.task.Task that are not at their default,
--                                 and the store's own: `place` (order in its queue and among all),
--                                 `mail` (letters unread), `final` (last generation that ended),
--                                 `skey` (its idempotency key's key), `e1`, `e2` … (its events:
--                                 type, generation, instant, id in the log, data)
--   task:{id}:payload, :result    string, when longer than SHORT: a long value would cost the hash
--                                 its compact form
--   task:{id}:mail                list of letters, name and body alternating
--   tasks:pending:{lane}[:{queue}][:high|:low]
--                                 list of ids, first in first out; the bare names are the queue HOME
--   tasks:scheduled               zset of ids by run_at
--   dlq:tasks, dlq:task:{id}      list of dead tasks' ids, and a hash of why each died
--   metrics:queue:depths          hash: how many by queue, lane (of queued tasks only) and state
--   metrics:tasks:by_state        hash: how many by state
--   onward:alarms                 zset of ids by due_at
--   onward:index                  zset of ids by place at birth: what `find` walks, newest first
--   onward:events                 stream: the event log and outbox
--   onward:place                  string: the last place given
--   onward:key:{scope}|{key}      hash: body and task of an idempotency key
--   onward:forget                 zset of such keys by the instant they may be forgotten
--   onward:doc:{kind}             hash of documents
--   onward:effects:{key}          hash of effects by name (written without functions)

local SEP = '\31'
local SHORT = 64
local HOME = 'summarize'
local FOREVER = 9e15
local LONG = { payload = true, result = true }
local FINAL_EVENTS = { ['task.succeeded'] = true, ['task.failed'] = true, ['task.canceled'] = true }
local LIVE = { scheduled = true, queued = true, running = true, waiting = true }
local LANES = { 'primary', 'retry' }
local PRIORITIES = { [0] = ':high', [1] = '', [2] = ':low' }

local P -- the prefix of this call
local delta -- counts changed by this call, by queue, lane and state

local function call(...) return redis.call(...) end -- redis.call does not exist while loading

local function key_of(id) return P .. 'task:' .. id end

local function lane_key(queue, priority, lane)
  local name = P .. 'tasks:pending:' .. lane
  if queue ~= HOME then name = name .. ':' .. queue end
  return name .. PRIORITIES[priority]
end

local function now_and(args)
  local request = cmsgpack.unpack(args[1])
  return request[1], request
end

local function begin(keys)
  P = keys[1]
  delta = {}
end

local function tally_of(queue, lane, state)
  return queue .. SEP .. (state == 'queued' and lane or '') .. SEP .. state
end

local function count(queue, lane, state, change)
  local name = tally_of(queue, lane, state)
  delta[name] = (delta[name] or 0) + change
end

local function add_up()
  local by_state = {}
  for name, change in pairs(delta) do
    if change ~= 0 then
      if call('HINCRBY', P .. 'metrics:queue:depths', name, change) == 0 then
        call('HDEL', P .. 'metrics:queue:depths', name)
      end
      local state = string.match(name, '[^' .. SEP .. ']*$')
      by_state[state] = (by_state[state] or 0) + change
    end
  end
  for state, change in pairs(by_state) do
    if change ~= 0 then call('HINCRBY', P .. 'metrics:tasks:by_state', state, change) end
  end
end

local function depth(queue)
  local total = 0
  for _, lane in ipairs(LANES) do
    local name = tally_of(queue, lane, 'queued')
    total = total + (delta[name] or 0)
      + tonumber(call('HGET', P .. 'metrics:queue:depths', name) or 0)
  end
  return total
end

local function next_place() return call('INCR', P .. 'onward:place') end

-- Events of one task, `n` counting on from `have`.
local function write_events(id, key, have, generation, notes, now)
  for _, note in ipairs(notes) do
    have = have + 1
    local type_, data = note[1], note[2] or ''
    local at = call('XADD', P .. 'onward:events', '*', 't', id, 'n', have, 'g', generation,
      'y', type_, 'a', now, 'd', data)
    call('HSET', key, 'e' .. have,
      table.concat({ type_, generation, string.format('%.0f', now), at, data }, SEP))
    if FINAL_EVENTS[type_] then call('HSET', key, 'final', generation) end
  end
end

local function set_alarm(id, due_at)
  if due_at then call('ZADD', P .. 'onward:alarms', due_at, id)
  else call('ZREM', P .. 'onward:alarms', id) end
end

-- Back to the place it was claimed from: behind those at the head that stood before it.
local function push_front(list, id, place)
  local behind
  for _, other in ipairs(call('LRANGE', list, 0, 255)) do
    if tonumber(call('HGET', key_of(other), 'place') or 0) > place then break end
    behind = other
  end
  if behind then call('LINSERT', list, 'AFTER', behind, id) else call('LPUSH', list, id) end
end

local function set_fields(id, key, fields)
  local flat = {}
  for name, value in pairs(fields) do
    if value == true then value = 1 end
    if value ~= false and name ~= 'id' then
      if LONG[name] and #value > SHORT then
        call('SET', key .. ':' .. name, value)
        call('HDEL', key, name)
      else
        if LONG[name] then call('DEL', key .. ':' .. name) end
        flat[#flat + 1] = name
        flat[#flat + 1] = value
      end
    end
  end
  if #flat > 0 then call('HSET', key, unpack(flat)) end
end

local function unset_fields(key, names)
  if #names == 0 then return end
  call('HDEL', key, unpack(names))
  for _, name in ipairs(names) do
    if LONG[name] then call('DEL', key .. ':' .. name) end
  end
end

local function long_field(key, name, inline)
  return inline or call('GET', key .. ':' .. name) or nil
end

local function number(value) return value and tonumber(value) or nil end

local function least(a, b, c, d)
  local nearest
  for _, at in ipairs({ a or FOREVER, b or FOREVER, c or FOREVER, d or FOREVER }) do
    if not nearest or at < nearest then nearest = at end
  end
  return nearest
end

local function letters_of(key)
  local flat, letters = call('LRANGE', key .. ':mail', 0, -1), {}
  for at = 1, #flat, 2 do letters[#letters + 1] = { flat[at], flat[at + 1] } end
  return letters
end

local CLAIM_FIELDS = { 'fence', 'rev', 'type', 'queue', 'profile', 'payload', 'generation',
  'attempt', 'failures', 'retries', 'lost', 'lane', 'created_at', 'expires_at', 'attempt_ms',
  'overrides', 'parent', 'key', 'journal', 'events', 'mail' }

-- One task into one worker's hands.
local function hand_over(id, ask, now)
  local key = key_of(id)
  local h = call('HMGET', key, unpack(CLAIM_FIELDS))
  local fence, rev = tonumber(h[1] or 0) + 1, tonumber(h[2] or 0) + 1
  local generation, attempt = tonumber(h[7] or 1), tonumber(h[8] or 0) + 1
  local attempt_ms, have = number(h[15]), tonumber(h[20] or 0)
  local until_ = ask.lease_ms and now + ask.lease_ms
  local attempt_by = until_ and attempt_ms and now + attempt_ms or nil -- only offered: no clock yet
  local due_at = least(until_, attempt_by, number(h[14]))
  local fields = { 'state', 'running', 'fence', fence, 'rev', rev, 'attempt', attempt,
    'events', have + 1, 'worker', ask.worker, 'started_at', now, 'due_at', due_at }
  if until_ then fields[#fields + 1] = 'lease_until' fields[#fields + 1] = until_ end
  if attempt_by then fields[#fields + 1] = 'attempt_by' fields[#fields + 1] = attempt_by end
  call('HSET', key, unpack(fields))
  if not until_ then call('HDEL', key, 'lease_until') end
  if not attempt_by then call('HDEL', key, 'attempt_by') end
  set_alarm(id, due_at)
  write_events(id, key, have, generation,
    { { 'task.claimed', '{"worker":' .. cjson.encode(ask.worker) .. ',"attempt":' .. attempt .. '}' } },
    now)
  local letters = tonumber(h[21] or 0) > 0 and letters_of(key) or {}
  return { id, ask.worker, fence, rev, h[3], h[4], h[5], long_field(key, 'payload', h[6]),
    generation, attempt, tonumber(h[9] or 0), tonumber(h[10] or 0), tonumber(h[11] or 0),
    h[12] or 'primary', tonumber(h[13]), number(h[14]) or false, attempt_by or false, attempt_ms or false,
    h[16] or false, h[17] or false, h[18] or false, h[19] or false, letters }
end

local function claim_for(ask, now, claimed)
  local found = 0
  for _, want in ipairs(ask.wants) do
    local limit = math.min(want.limit, ask.limit - found)
    if limit <= 0 then break end
    local ids = call('LPOP', lane_key(want.queue, want.priority, want.lane), limit)
    if ids then
      for _, id in ipairs(ids) do
        claimed[#claimed + 1] = hand_over(id, ask, now)
        found = found + 1
      end
      count(want.queue, want.lane, 'queued', -#ids)
      count(want.queue, want.lane, 'running', #ids)
    end
  end
  return found
end

-- A free hand for a new task of this queue, if there is one.
local function free_hand(asks, queue)
  for _, ask in ipairs(asks) do
    if ask.left > 0 and ask.queues[queue] then return ask end
  end
end

local function enqueue(id, task, place, front)
  local list = lane_key(task.queue, task.priority, task.lane)
  if front then push_front(list, id, place) else call('RPUSH', list, id) end
end

-- One submission; returns its receipt: fate, task id, running.
local function admit(submission, asks, now, claimed)
  local task, key = submission.task, submission.key
  local queue, state = task.queue, task.state or 'queued'
  local lane, priority = task.lane or 'primary', task.priority or 1
  local key_name = key and P .. 'onward:key:' .. key.scope .. '|' .. key.key
  if key then
    local known = call('HMGET', key_name, 'body', 'task')
    if known[2] then return { known[1] == key.body and 'known' or 'reused', known[2], false } end
  end
  local waiting = depth(queue)
  local hand = state == 'queued' and waiting == 0 and free_hand(asks, queue) or nil
  if not hand and submission.cap and waiting >= submission.cap then
    return { 'full', task.id, false }
  end
  local place, name = next_place(), key_of(task.id)
  task.place = place
  if key then
    call('HSET', key_name, 'body', key.body, 'task', task.id)
    task.skey = key_name
  end
  set_fields(task.id, name, task)
  call('ZADD', P .. 'onward:index', place, task.id)
  if task.due_at then set_alarm(task.id, task.due_at) end
  write_events(task.id, name, 0, task.generation or 1, submission.events, now)
  if hand then
    hand.left = hand.left - 1
    claimed[#claimed + 1] = hand_over(task.id, hand, now)
    count(queue, lane, 'running', 1)
  else
    count(queue, lane, state, 1)
    if state == 'queued' then
      enqueue(task.id, { queue = queue, priority = priority, lane = lane }, place, false)
    elseif state == 'scheduled' then
      call('ZADD', P .. 'tasks:scheduled', task.run_at, task.id)
    end
  end
  return { 'fresh', task.id, hand ~= nil }
end

local function insert(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local submissions, asks = request[2], request[3]
  local claimed, receipts = {}, {}
  for _, ask in ipairs(asks) do
    ask.left, ask.queues = ask.limit, {}
    for _, want in ipairs(ask.wants) do ask.queues[want.queue] = true end
    ask.left = ask.left - claim_for(ask, now, claimed)
  end
  for at, submission in ipairs(submissions) do
    receipts[at] = admit(submission, asks, now, claimed)
  end
  add_up()
  return cmsgpack.pack({ receipts, claimed })
end

local function claim(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local claimed = {}
  for _, ask in ipairs(request[2]) do claim_for(ask, now, claimed) end
  add_up()
  return cmsgpack.pack(claimed)
end

local function extend(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local pulses = {}
  for at, hold in ipairs(request[2]) do
    local key = key_of(hold.task)
    local h = call('HMGET', key, 'state', 'fence', 'attempt_by', 'expires_at', 'cancel_by',
      'events', 'generation')
    if h[1] ~= 'running' or tonumber(h[2] or 0) ~= hold.fence then
      pulses[at] = 'lost'
    else
      local due_at = least(hold['until'], number(h[3]), number(h[4]), number(h[5]))
      local have, notes = tonumber(h[6] or 0), hold.notes or {}
      call('HSET', key, 'lease_until', hold['until'], 'due_at', due_at, 'events', have + #notes)
      if hold.progress then call('HSET', key, 'progress', hold.progress) end
      set_alarm(hold.task, due_at)
      write_events(hold.task, key, have, tonumber(h[7] or 1), notes, now)
      pulses[at] = h[5] and 'cancel' or 'held'
    end
  end
  return cmsgpack.pack(pulses)
end

local function wake(id, key, h, now, awake)
  -- Only a decision releases a task that waits for approval: a letter must not pass for one.
  if h.state ~= 'waiting' or h.waiting_for == 'approval' then return end
  local place = next_place()
  call('HSET', key, 'state', 'queued', 'rev', h.rev + 1, 'events', h.events + 1, 'place', place,
    'queued_at', now)
  call('HDEL', key, 'waiting_for')
  local due_at = number(call('HGET', key, 'expires_at'))
  if due_at then call('HSET', key, 'due_at', due_at) else call('HDEL', key, 'due_at') end
  set_alarm(id, due_at)
  enqueue(id, h, place, false)
  count(h.queue, h.lane, 'waiting', -1)
  count(h.queue, h.lane, 'queued', 1)
  write_events(id, key, h.events, h.generation, { { 'task.woken' } }, now)
  awake[h.queue] = true
end

local HEAD = { 'state', 'fence', 'rev', 'due_at', 'queue', 'lane', 'priority', 'generation',
  'events', 'final', 'place', 'waiting_for' }

local function head_of(key)
  local h = call('HMGET', key, unpack(HEAD))
  if not h[5] then return nil end
  return { state = h[1] or 'queued', fence = tonumber(h[2] or 0), rev = tonumber(h[3] or 0),
    due_at = number(h[4]), queue = h[5], lane = h[6] or 'primary', priority = tonumber(h[7] or 1),
    generation = tonumber(h[8] or 1), events = tonumber(h[9] or 0), final = number(h[10]),
    place = tonumber(h[11]), waiting_for = h[12] or nil }
end

local function deliver(letter, now, awake)
  local key = key_of(letter.to)
  local h = head_of(key)
  if not h or not LIVE[h.state] then return false end
  call('RPUSH', key .. ':mail', letter.name, letter.body)
  call('HINCRBY', key, 'mail', 1)
  wake(letter.to, key, h, now, awake)
  return true
end

local function leave_place(id, h)
  if h.state == 'queued' then call('LREM', lane_key(h.queue, h.priority, h.lane), 1, id)
  elseif h.state == 'scheduled' then call('ZREM', P .. 'tasks:scheduled', id)
  elseif h.state == 'dead' then
    call('LREM', P .. 'dlq:tasks', 1, id)
    call('DEL', P .. 'dlq:task:' .. id)
  end
end

local function take_place(id, key, h, move, now)
  if move.to == 'queued' then
    if not move.front then
      h.place = next_place()
      call('HSET', key, 'place', h.place)
    end
    enqueue(id, h, h.place, move.front)
  elseif move.to == 'scheduled' then
    call('ZADD', P .. 'tasks:scheduled', move.set.run_at or move.due_at, id)
  elseif move.to == 'dead' then
    call('RPUSH', P .. 'dlq:tasks', id)
    call('HSET', P .. 'dlq:task:' .. id, 'task_id', id, 'queue', h.queue,
      'error', move.set.error or '', 'failed_at', now)
  end
end

local function refusal(h, move)
  if not h then return 'gone' end
  if h.fence ~= move.fence then return 'stale' end
  if h.state ~= move.expect or h.rev ~= move.rev then return 'moved' end
  if move.due_by and not (h.due_at and h.due_at <= move.due_by) then return 'early' end
end

local function move_on(move, now, awake)
  local id, key = move.task, key_of(move.task)
  local h = head_of(key)
  local refused = refusal(h, move)
  if refused then return refused end
  local generation = move.set.generation or h.generation
  for _, note in ipairs(move.events) do
    if FINAL_EVENTS[note[1]] and h.final == generation then
      error('a second final event for ' .. id)
    end
  end
  if move.to ~= move.expect then
    leave_place(id, h)
    count(h.queue, h.lane, move.expect, -1)
    h.lane = move.set.lane or h.lane
    count(h.queue, h.lane, move.to, 1)
    take_place(id, key, h, move, now)
  end
  move.set.state, move.set.rev, move.set.due_at = move.to, h.rev + 1, move.due_at
  move.set.events = h.events + #move.events
  set_fields(id, key, move.set)
  unset_fields(key, move.unset)
  if not move.due_at then call('HDEL', key, 'due_at') end
  set_alarm(id, move.due_at)
  write_events(id, key, h.events, generation, move.events, now)
  if move.to == 'queued' then awake[h.queue] = true end
  for _, child in ipairs(move.spawn or {}) do
    local receipt = admit(child, {}, now, {})
    if receipt[1] == 'fresh' and (child.task.state or 'queued') == 'queued' then
      awake[child.task.queue] = true
    end
  end
  if move.seen then
    if move.seen > 0 then
      call('LTRIM', key .. ':mail', 2 * move.seen, -1)
      call('HINCRBY', key, 'mail', -move.seen)
    end
    if move.to == 'waiting' and tonumber(call('HGET', key, 'mail') or 0) > 0 then
      -- Compare-and-park: a letter that came after the claim must not wait for another.
      wake(id, key, head_of(key), now, awake)
    end
  end
  for _, letter in ipairs(move.letters or {}) do deliver(letter, now, awake) end
  return 'applied'
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

local function apply(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local verdicts, awake = {}, {}
  for at, move in ipairs(request[2]) do verdicts[at] = move_on(move, now, awake) end
  add_up()
  return cmsgpack.pack({ verdicts, names_of(awake) })
end

local function post(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local verdicts, awake = {}, {}
  for at, letter in ipairs(request[2]) do
    verdicts[at] = deliver(letter, now, awake) and 'applied' or 'gone'
  end
  add_up()
  return cmsgpack.pack({ verdicts, names_of(awake) })
end

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
  if LIVE[task.state or 'queued'] == nil then
    task.result = long_field(key, 'result', task.result)
  end
  return task
end

local function get(keys, args)
  begin(keys)
  local _, request = now_and(args)
  local tasks = {}
  for at, id in ipairs(request[2]) do tasks[at] = read_task(id) end
  return cmsgpack.pack(tasks)
end

local function due(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local tasks = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'onward:alarms', '-inf', now, 'LIMIT', 0, request[2])) do
    local task = read_task(id)
    if task then tasks[#tasks + 1] = task end
  end
  return cmsgpack.pack(tasks)
end

local function holds(task, query)
  local function within(set, value)
    if not set or #set == 0 then return true end
    for _, one in ipairs(set) do if one == value then return true end end
    return false
  end
  if not within(query.states, task.state or 'queued') then return false end
  if not within(query.profiles, task.profile) then return false end
  for _, name in ipairs({ 'type', 'queue', 'session', 'parent', 'fingerprint', 'waiting_for' }) do
    if query[name] and query[name] ~= task[name] then return false end
  end
  local said = query.approval and '"status":"' .. (query.approval == 'all' and '' or query.approval .. '"')
  if said and not (task.approval and string.find(task.approval, said, 1, true)) then return false end
  if query.text then
    for _, name in ipairs({ 'id', 'type', 'payload', 'error' }) do
      if task[name] and string.find(task[name], query.text, 1, true) then return true end
    end
    return false
  end
  return true
end

-- Walks the index from a place downwards, at most `steps` tasks; returns what it found, each with its
-- birth place, and where it stopped (false: at the end).
local function find(keys, args)
  begin(keys)
  local _, request = now_and(args)
  local query, from, steps = request[2], request[3] or '+inf', request[4]
  local flat = call('ZREVRANGEBYSCORE', P .. 'onward:index', from, '-inf', 'WITHSCORES', 'LIMIT', 0, steps)
  local found, stopped = {}, false
  for at = 1, #flat, 2 do
    local task = read_task(flat[at])
    if task and holds(task, query) then found[#found + 1] = { flat[at + 1], task } end
    if #found > query.limit then break end
    if at == 2 * steps - 1 then stopped = flat[at + 1] end
  end
  return cmsgpack.pack({ found, stopped })
end

local function position(keys, args)
  begin(keys)
  local _, request = now_and(args)
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
  begin(keys)
  local _, request = now_and(args)
  local id, after, limit = request[2], request[3], request[4]
  local key = key_of(id)
  local have = tonumber(call('HGET', key, 'events') or 0)
  local events = {}
  for n = after + 1, math.min(have, after + limit) do
    events[#events + 1] = { n, call('HGET', key, 'e' .. n) or '' }
  end
  return cmsgpack.pack(events)
end

local function behind(a, b) -- log ids: is a before b?
  local am, as = string.match(a, '(%d+)-(%d+)')
  local bm, bs = string.match(b, '(%d+)-(%d+)')
  am, as, bm, bs = tonumber(am), tonumber(as), tonumber(bm), tonumber(bs)
  return am < bm or (am == bm and as < bs)
end

-- Where in the log a task's events are.
local function log_ids(key, events)
  local logged = {}
  for n = 1, events do
    local _, _, at = string.find(call('HGET', key, 'e' .. n) or '',
      '^[^' .. SEP .. ']*' .. SEP .. '%d+' .. SEP .. '%d+' .. SEP .. '([%d-]+)')
    logged[#logged + 1] = at
  end
  return logged
end

local function purge(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local ids, slowest, postpone_until, forget_at = request[2], request[3], request[4], request[5]
  local gone = 0
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local h = head_of(key)
    if h and not LIVE[h.state] then
      local logged, skey = log_ids(key, h.events), call('HGET', key, 'skey')
      if slowest and #logged > 0 and behind(slowest, logged[#logged]) then
        -- Somebody has not read its events yet: it stays a while, out of the sweep's way.
        if h.state ~= 'dead' then
          call('HSET', key, 'due_at', postpone_until)
          set_alarm(id, postpone_until)
        end
      else
        leave_place(id, h)
        for _, at in ipairs(logged) do call('XDEL', P .. 'onward:events', at) end
        call('DEL', key, key .. ':payload', key .. ':result', key .. ':mail',
          P .. 'onward:effects:' .. id)
        call('ZREM', P .. 'onward:alarms', id)
        call('ZREM', P .. 'onward:index', id)
        count(h.queue, h.lane, h.state, -1)
        if skey then call('ZADD', P .. 'onward:forget', forget_at, skey) end
        gone = gone + 1
      end
    end
  end
  for _, skey in ipairs(call('ZRANGEBYSCORE', P .. 'onward:forget', '-inf', now, 'LIMIT', 0, 1000)) do
    call('DEL', skey, P .. 'onward:effects:' .. string.match(skey, '|(.*)$'))
    call('ZREM', P .. 'onward:forget', skey)
  end
  add_up()
  return gone
end

-- A document is stored as version, expiry and body; `expect` is the version it must have now.
local function put_document(keys, args)
  begin(keys)
  local now, request = now_and(args)
  local name, field = P .. 'onward:doc:' .. request[2], request[3]
  local body, expect, expires_at = request[4], request[5], request[6]
  local version = 0
  local found = call('HGET', name, field)
  if found then
    local had, expiry = string.match(found, '^(%d+)' .. SEP .. '(%d*)' .. SEP)
    if expiry == '' or tonumber(expiry) > now then version = tonumber(had) end
  end
  if expect and expect ~= version then return false end
  call('HSET', name, field, string.format('%d', version + 1) .. SEP
    .. (expires_at and string.format('%.0f', expires_at) or '') .. SEP .. body)
  return version + 1
end

local function register(name, callback, ...)
  redis.register_function({ function_name = 'onward_' .. name, callback = callback, flags = { ... } })
end

register('insert', insert) -- refused when memory is full; what is there must still drain:
register('claim', claim, 'allow-oom')
register('extend', extend, 'allow-oom')
register('apply', apply, 'allow-oom')
register('post', post, 'allow-oom')
register('purge', purge, 'allow-oom')
register('put_document', put_document, 'allow-oom')
register('get', get, 'no-writes')
register('due', due, 'no-writes')
register('find', find, 'no-writes')
register('position', position, 'no-writes')
register('history', history, 'no-writes')
