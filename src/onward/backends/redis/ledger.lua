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
--                                 `skey` (its idempotency key's key), `e1`, `e2` … (where in the
--                                 log its events are)
--   task:{id}:payload, :result    string, when longer than SHORT (its field is empty then): a long
--                                 value would cost the hash its compact form
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
local MOST = 1000 -- arguments of one command, an even number
local LANES = { 'primary', 'retry' }
local PRIORITIES = { [0] = ':high', [1] = '', [2] = ':low' }

local P -- the prefix of this call
local call -- redis.call, which does not exist while loading
local delta, queued, stored -- counts changed by this call, of queued tasks by queue, and as it was
local batches, alarms -- what is written at the end of this call, many in one command
local spare, last -- places taken but not given yet, and the last one given

local function begin(keys, args)
  P, call = keys[1], redis.call
  delta, queued, stored, batches, alarms, spare = {}, {}, {}, {}, {}, 0
  local request = cmsgpack.unpack(args[1])
  return request[1], request
end

local function key_of(id) return P .. 'task:' .. id end

local function lane_key(queue, priority, lane)
  local name = P .. 'tasks:pending:' .. lane
  if queue ~= HOME then name = name .. ':' .. queue end
  return name .. PRIORITIES[priority]
end

-- Items for a key, in the order given, by one command at the end of the call.
local function later(command, key, item, other)
  local batch = batches[command .. key]
  if not batch then
    batch = { command, key }
    batches[command .. key] = batch
  end
  batch[#batch + 1] = item
  if other then batch[#batch + 1] = other end
end

local function set_alarm(id, due_at) alarms[id] = due_at or false end

local function tally_of(queue, lane, state)
  return queue .. SEP .. (state == 'queued' and lane or '') .. SEP .. state
end

local function count(queue, lane, state, change)
  local name = tally_of(queue, lane, state)
  delta[name] = (delta[name] or 0) + change
  if state == 'queued' then queued[queue] = (queued[queue] or 0) + change end
end

local function depth(queue)
  if not stored[queue] then
    local lanes = call('HMGET', P .. 'metrics:queue:depths', tally_of(queue, 'primary', 'queued'),
      tally_of(queue, 'retry', 'queued'))
    stored[queue] = tonumber(lanes[1] or 0) + tonumber(lanes[2] or 0)
  end
  return stored[queue] + (queued[queue] or 0)
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

-- Everything that was put off, and the answer.
local function finish(answer)
  for id, due_at in pairs(alarms) do
    if due_at then later('ZADD', P .. 'onward:alarms', due_at, id)
    else later('ZREM', P .. 'onward:alarms', id) end
  end
  for _, batch in pairs(batches) do
    for at = 3, #batch, MOST do
      call(batch[1], batch[2], unpack(batch, at, math.min(at + MOST - 1, #batch)))
    end
  end
  add_up()
  return cmsgpack.pack(answer)
end

local function take_places(many)
  last = call('INCRBY', P .. 'onward:place', many) - many
  spare = many
end

local function next_place()
  if spare == 0 then take_places(1) end
  spare, last = spare - 1, last + 1
  return last
end

-- Into `flat`: the fields of a task's next events, `n` counting on from `have`.
local function write_events(flat, id, have, generation, notes, now)
  local at = #flat
  for turn, note in ipairs(notes) do
    local n = have + turn
    flat[at + 1], flat[at + 2] = 'e' .. n, call('XADD', P .. 'onward:events', '*', 't', id, 'n', n,
      'g', generation, 'y', note[1], 'a', now, 'd', note[2] or '')
    at = at + 2
    if FINAL_EVENTS[note[1]] then
      flat[at + 1], flat[at + 2] = 'final', generation
      at = at + 2
    end
  end
  flat[at + 1], flat[at + 2] = 'events', have + #notes
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

-- Into `flat`: names and values as HSET takes them.
local function flatten(flat, key, fields)
  local at = #flat
  for name, value in pairs(fields) do
    if value and name ~= 'id' then
      if value == true then value = 1
      elseif LONG[name] and #value > SHORT then
        call('SET', key .. ':' .. name, value)
        value = ''
      end
      flat[at + 1], flat[at + 2] = name, value
      at = at + 2
    end
  end
end

local function unset_fields(key, names)
  if #names == 0 then return end
  call('HDEL', key, unpack(names))
  for _, name in ipairs(names) do
    if LONG[name] then call('DEL', key .. ':' .. name) end
  end
end

local function long_field(key, name, inline)
  if inline == '' then return call('GET', key .. ':' .. name) or nil end
  return inline or nil
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
  'overrides', 'parent', 'key', 'journal', 'events', 'mail', 'lease_until', 'attempt_by' }

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
  local flat = { 'state', 'running', 'fence', fence, 'rev', rev, 'attempt', attempt,
    'worker', ask.worker, 'started_at', now, 'due_at', due_at }
  if until_ then flat[15], flat[16] = 'lease_until', until_
  elseif h[22] then call('HDEL', key, 'lease_until') end
  if attempt_by then flat[17], flat[18] = 'attempt_by', attempt_by
  elseif h[23] then call('HDEL', key, 'attempt_by') end
  ask.said = ask.said or '{"worker":' .. cjson.encode(ask.worker) .. ',"attempt":'
  write_events(flat, id, have, generation, { { 'task.claimed', ask.said .. attempt .. '}' } }, now)
  call('HSET', key, unpack(flat))
  set_alarm(id, due_at)
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
  if front then push_front(list, id, place) else later('RPUSH', list, id) end
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
  local flat = {}
  flatten(flat, name, task)
  write_events(flat, task.id, 0, task.generation or 1, submission.events, now)
  call('HSET', name, unpack(flat))
  later('ZADD', P .. 'onward:index', place, task.id)
  if task.due_at then set_alarm(task.id, task.due_at) end
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
  local now, request = begin(keys, args)
  local submissions, asks = request[2], request[3]
  local claimed, receipts = {}, {}
  for _, ask in ipairs(asks) do
    ask.left, ask.queues = ask.limit, {}
    for _, want in ipairs(ask.wants) do ask.queues[want.queue] = true end
    ask.left = ask.left - claim_for(ask, now, claimed)
  end
  take_places(#submissions)
  for at, submission in ipairs(submissions) do
    receipts[at] = admit(submission, asks, now, claimed)
  end
  return finish({ receipts, claimed })
end

local function claim(keys, args)
  local now, request = begin(keys, args)
  local claimed = {}
  for _, ask in ipairs(request[2]) do claim_for(ask, now, claimed) end
  return finish(claimed)
end

local function extend(keys, args)
  local now, request = begin(keys, args)
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
      local flat = { 'lease_until', hold['until'], 'due_at', due_at }
      if hold.progress then flat[5], flat[6] = 'progress', hold.progress end
      write_events(flat, hold.task, have, tonumber(h[7] or 1), notes, now)
      call('HSET', key, unpack(flat))
      set_alarm(hold.task, due_at)
      pulses[at] = h[5] and 'cancel' or 'held'
    end
  end
  return finish(pulses)
end

local function wake(id, key, h, now, awake)
  -- Only a decision releases a task that waits for approval: a letter must not pass for one.
  if h.state ~= 'waiting' or h.waiting_for == 'approval' then return end
  local place, due_at = next_place(), number(call('HGET', key, 'expires_at'))
  local flat = { 'state', 'queued', 'rev', h.rev + 1, 'place', place, 'queued_at', now }
  if due_at then flat[9], flat[10] = 'due_at', due_at else call('HDEL', key, 'due_at') end
  write_events(flat, id, h.events, h.generation, { { 'task.woken' } }, now)
  call('HSET', key, unpack(flat))
  call('HDEL', key, 'waiting_for')
  set_alarm(id, due_at)
  enqueue(id, h, place, false)
  count(h.queue, h.lane, 'waiting', -1)
  count(h.queue, h.lane, 'queued', 1)
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

local function take_place(id, h, move, now)
  if move.to == 'queued' then
    if not move.front then move.set.place = next_place() end
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
    take_place(id, h, move, now)
  end
  local flat = { 'state', move.to, 'rev', h.rev + 1 }
  if move.due_at then flat[5], flat[6] = 'due_at', move.due_at
  else move.unset[#move.unset + 1] = 'due_at' end
  flatten(flat, key, move.set)
  write_events(flat, id, h.events, generation, move.events, now)
  call('HSET', key, unpack(flat))
  unset_fields(key, move.unset)
  set_alarm(id, move.due_at)
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
  local now, request = begin(keys, args)
  local verdicts, awake = {}, {}
  for at, move in ipairs(request[2]) do verdicts[at] = move_on(move, now, awake) end
  return finish({ verdicts, names_of(awake) })
end

local function post(keys, args)
  local now, request = begin(keys, args)
  local verdicts, awake = {}, {}
  for at, letter in ipairs(request[2]) do
    verdicts[at] = deliver(letter, now, awake) and 'applied' or 'gone'
  end
  return finish({ verdicts, names_of(awake) })
end

local function behind(a, b) -- log ids: is a before b?
  local am, as = string.match(a, '(%d+)-(%d+)')
  local bm, bs = string.match(b, '(%d+)-(%d+)')
  am, as, bm, bs = tonumber(am), tonumber(as), tonumber(bm), tonumber(bs)
  return am < bm or (am == bm and as < bs)
end

local function forget(id, key, h)
  local skey = call('HGET', key, 'skey')
  leave_place(id, h)
  for n = 1, h.events do later('XDEL', P .. 'onward:events', call('HGET', key, 'e' .. n) or '0-0') end
  call('DEL', key, key .. ':payload', key .. ':result', key .. ':mail', P .. 'onward:effects:' .. id)
  set_alarm(id, nil)
  later('ZREM', P .. 'onward:index', id)
  count(h.queue, h.lane, h.state, -1)
  return skey
end

local function purge(keys, args)
  local now, request = begin(keys, args)
  local ids, slowest, postpone_until, forget_at = request[2], request[3], request[4], request[5]
  local gone = 0
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local h = head_of(key)
    if h and not LIVE[h.state] then
      local logged = call('HGET', key, 'e' .. h.events)
      if not (slowest and logged and behind(slowest, logged)) then
        local skey = forget(id, key, h)
        if skey then later('ZADD', P .. 'onward:forget', forget_at, skey) end
        gone = gone + 1
      elseif h.state ~= 'dead' then
        -- Somebody has not read its events yet: it stays a while, out of the sweep's way.
        call('HSET', key, 'due_at', postpone_until)
        set_alarm(id, postpone_until)
      end
    end
  end
  for _, skey in ipairs(call('ZRANGEBYSCORE', P .. 'onward:forget', '-inf', now, 'LIMIT', 0, 1000)) do
    call('DEL', skey, P .. 'onward:effects:' .. string.match(skey, '|(.*)$'))
    call('ZREM', P .. 'onward:forget', skey)
  end
  return finish(gone)
end

-- A document is stored as version, expiry and body; `expect` is the version it must have now.
local function put_document(keys, args)
  local now, request = begin(keys, args)
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
