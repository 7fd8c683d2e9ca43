-- What becomes of tasks: held, moved on, written to, forgotten. Comes after ledger.lua.

local function extend(keys, args)
  local now, request = begin_telling(keys, args)
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
      if #notes > 0 then tell_of(hold.task) end
      pulses[at] = h[5] and 'cancel' or 'held'
    end
  end
  return finish(pulses)
end

-- What the steps of one call share: the free hands that ride along and what they got, queues with
-- new work, and tasks whose answers were applied.
local function begin_turn(now, asks)
  local turn = { now = now, asks = asks, claimed = {}, owed = {}, awake = {}, answered = {} }
  fill(asks, now, turn.claimed, turn.owed)
  return turn
end

local function wake(id, key, h, turn)
  -- Only a decision releases a task that waits for approval: a letter must not pass for one.
  if h.state ~= 'waiting' or h.waiting_for == 'approval' then return end
  local place, due_at = next_place(), number(call('HGET', key, 'expires_at'))
  local flat = { 'state', 'queued', 'rev', h.rev + 1, 'place', place, 'queued_at', turn.now }
  if due_at then flat[9], flat[10] = 'due_at', due_at else call('HDEL', key, 'due_at') end
  write_events(flat, id, h.events, h.generation, { { 'task.woken' } }, turn.now)
  call('HSET', key, unpack(flat))
  call('HDEL', key, 'waiting_for')
  set_alarm(id, due_at)
  enqueue(id, h, place, false)
  count(h.queue, h.lane, 'waiting', -1)
  count(h.queue, h.lane, 'queued', 1)
  turn.awake[h.queue] = true
end

-- What every move must know of its task, and what those must that touch a queue or ask for a clock.
local HEAD = { 'state', 'fence', 'rev', 'queue', 'lane', 'generation', 'events', 'final', 'error', 'lost' }
local REST = { 'due_at', 'priority', 'place', 'waiting_for' }

local function head_of(key)
  local h = call('HMGET', key, unpack(HEAD))
  if not h[4] then return nil end
  return { state = h[1] or 'queued', fence = tonumber(h[2] or 0), rev = tonumber(h[3] or 0),
    queue = h[4], lane = h[5] or 'primary', generation = tonumber(h[6] or 1),
    events = tonumber(h[7] or 0), final = number(h[8]), error = h[9], lost = h[10] }
end

local function whole_head_of(key)
  local h = head_of(key)
  if h then
    local rest = call('HMGET', key, unpack(REST))
    h.due_at, h.priority = number(rest[1]), tonumber(rest[2] or 1)
    h.place, h.waiting_for = tonumber(rest[3]), rest[4] or nil
  end
  return h
end

local function deliver(letter, turn)
  local key = key_of(letter.to)
  local h = whole_head_of(key)
  if not h or not LIVE[h.state] then return false end
  call('RPUSH', key .. ':mail', letter.name, letter.body)
  call('HINCRBY', key, 'mail', 1)
  wake(letter.to, key, h, turn)
  tell_of(letter.to)
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
    if not move.front then move.set.place = next_place() - (move.ahead and AHEAD or 0) end
    enqueue(id, h, move.set.place or h.place, move.front or move.ahead)
  elseif move.to == 'scheduled' then
    call('ZADD', P .. 'tasks:scheduled', (move.set.run_at or move.due_at) / 1000, id)
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

local function tell_move(move)
  tell_of(move.task)
  if LIVE[move.to] or not LIVE[move.expect] then return end
  local result, error = move.set.result, move.set.error
  local told = #(result or '') <= TELLING and #(error or '') <= TELLING
  news.endings[#news.endings + 1] = told
    and { move.task, move.to, result or NIL, error or NIL, move.set.finished_at } or { move.task }
end

local function bear(children, turn)
  for _, child in ipairs(children) do
    local receipt = admit(child, turn.asks, turn.now, turn.claimed, turn.owed)
    local queued = (child.task.state or 'queued') == 'queued' and not receipt[3]
    if receipt[1] == 'fresh' and queued then turn.awake[child.task.queue] = true end
  end
end

local function move_on(move, turn)
  local id, key = move.task, key_of(move.task)
  local plain = move.expect == 'running' and move.to ~= 'queued' and not move.due_by
  local h = plain and head_of(key) or whole_head_of(key)
  local refused = refusal(h, move)
  if refused then return refused end
  local generation = move.set.generation or h.generation
  local ended = not LIVE[h.state] and h.generation or h.final
  for _, note in ipairs(move.events) do
    if FINAL_EVENTS[note[1]] and ended == generation then
      error('a second final event for ' .. id)
    end
  end
  if move.to ~= move.expect or move.ahead then
    leave_place(id, h)
    count(h.queue, h.lane, move.expect, -1)
    h.lane = move.set.lane or h.lane
    count(h.queue, h.lane, move.to, 1)
    take_place(id, h, move, turn.now)
    if move.expect == 'running' then runs[id] = false
    elseif move.to == 'running' then runs[id] = true end
    if not LIVE[h.state] then move.set.final = h.generation end
  end
  local flat = { 'state', move.to, 'rev', h.rev + 1 }
  if move.due_at then flat[5], flat[6] = 'due_at', move.due_at
  else move.unset[#move.unset + 1] = 'due_at' end
  flatten(flat, key, move.set)
  write_events(flat, id, h.events, generation, move.events, turn.now)
  call('HSET', key, unpack(flat))
  unset_fields(key, move.unset, h)
  set_alarm(id, move.due_at)
  if move.to == 'queued' then turn.awake[h.queue] = true end
  if move.spawn then bear(move.spawn, turn) end
  if move.seen then
    if move.seen > 0 then
      call('LTRIM', key .. ':mail', 2 * move.seen, -1)
      call('HINCRBY', key, 'mail', -move.seen)
    end
    if move.to == 'waiting' and tonumber(call('HGET', key, 'mail') or 0) > 0 then
      -- Compare-and-park: a letter that came after the claim must not wait for another.
      wake(id, key, whole_head_of(key), turn)
    end
  end
  if news then tell_move(move) end
  return 'applied'
end

-- The letters of a move come last; one whose reader goes on at once, as was decided, is not posted.
local function post_letters(move, turn)
  local answer = move.answer
  if answer and move_on(answer, turn) == 'applied' then
    turn.answered[#turn.answered + 1] = answer.task
    post_letters(answer, turn)
  else
    for _, letter in ipairs(move.letters or {}) do deliver(letter, turn) end
  end
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

local function apply(keys, args)
  local now, request = begin_telling(keys, args)
  local turn, verdicts = begin_turn(now, request[3]), {}
  for at, move in ipairs(request[2]) do
    verdicts[at] = move_on(move, turn)
    if verdicts[at] == 'applied' then post_letters(move, turn) end
  end
  pay(turn.owed)
  if news then news.queues = turn.awake end
  return finish({ verdicts, names_of(turn.awake), turn.claimed, turn.answered })
end

local function post(keys, args)
  local now, request = begin_telling(keys, args)
  local turn, verdicts = begin_turn(now, {}), {}
  for at, letter in ipairs(request[2]) do
    verdicts[at] = deliver(letter, turn) and 'applied' or 'gone'
  end
  if news then news.queues = turn.awake end
  return finish({ verdicts, names_of(turn.awake), {}, {} })
end

local function behind(a, b) -- log ids: is a before b?
  local am, as = string.match(a, '(%d+)-(%d+)')
  local bm, bs = string.match(b, '(%d+)-(%d+)')
  am, as, bm, bs = tonumber(am), tonumber(as), tonumber(bm), tonumber(bs)
  return am < bm or (am == bm and as < bs)
end

local function forget(id, key, h)
  local skey, session = unpack(call('HMGET', key, 'skey', 'session'))
  leave_place(id, h)
  for n = 1, h.events do later('XDEL', P .. 'onward:events', call('HGET', key, 'e' .. n) or '0-0') end
  call('DEL', key, key .. ':payload', key .. ':output', key .. ':mail', P .. 'onward:effects:' .. id)
  set_alarm(id, nil)
  later('ZREM', P .. 'onward:index', id)
  if session then
    call('ZREM', P .. 'onward:session:' .. session, id)
    if call('EXISTS', P .. 'onward:session:' .. session) == 0 then
      call('ZREM', P .. 'onward:sessions', session)
    end
  end
  count(h.queue, h.lane, h.state, -1)
  return skey
end

local function purge(keys, args)
  local now, request = begin(keys, args)
  local ids, slowest, postpone_until, forget_at = request[2], request[3], request[4], request[5]
  local gone = 0
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local h = whole_head_of(key)
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
  -- A kind whose documents all end goes with the last of them; one that stays keeps its kind.
  if not expires_at then call('PERSIST', name)
  elseif call('HLEN', name) == 1 then call('PEXPIRE', name, math.max(1, expires_at - now))
  else call('PEXPIRE', name, math.max(1, expires_at - now), 'GT') end
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
