-- What becomes of tasks: held, moved on, written to, forgotten. Comes after ledger.lua.

local function extend(keys, args)
  local _, request = begin_telling(keys, args)
  local pulses = {}
  for at, hold in ipairs(request[2]) do
    local key = key_of(hold.task)
    local h = call('HMGET', key, 'state', 'fence', 'attempt_by', 'expires_at', 'cancel_by',
      'events', 'generation', 'lease_until', 'queue', 'lane')
    if h[1] ~= 'running' or tonumber(h[2] or 0) ~= hold.fence then
      pulses[at] = 'lost'
    else
      local due_at = least(hold['until'], number(h[3]), number(h[4]), number(h[5]))
      if not h[8] then count(h[9], h[10] or 'primary', 'offered', -1) end
      local have, notes = tonumber(h[6] or 0), hold.notes or {}
      local flat = { 'lease_until', hold['until'], 'due_at', due_at }
      if hold.progress then flat[5], flat[6] = 'progress', hold.progress end
      write_events(flat, hold.task, have, tonumber(h[7] or 1), notes)
      call('HSET', key, unpack(flat))
      set_lease(hold.task, due_at)
      if #notes > 0 then tell_of(hold.task) end
      pulses[at] = h[5] and 'cancel' or 'held'
    end
  end
  return finish(pulses)
end

-- What the steps of one call share: the free hands that ride along and what they got, queues with
-- new work, and tasks whose answers were applied.
local function begin_turn(now, asks, kinds, births)
  local turn = { now = now, asks = asks, kinds = kinds, births = births, claimed = {}, owed = {},
    awake = {}, answered = {} }
  fill(asks, now, turn.claimed, turn.owed)
  return turn
end

local function wake(id, key, h, turn)
  -- Only a decision releases a task that waits for approval: a letter must not pass for one.
  if h.state ~= 'waiting' or h.waiting_for == 'approval' then return end
  local place, due_at = next_place(), number(call('HGET', key, 'expires_at'))
  local flat = { 'state', 'queued', 'rev', h.rev + 1, 'place', place, 'queued_at', stamp }
  if due_at then flat[9], flat[10] = 'due_at', due_at else call('HDEL', key, 'due_at') end
  write_events(flat, id, h.events, h.generation, { { 'task.woken' } })
  call('HSET', key, unpack(flat))
  call('HDEL', key, 'waiting_for')
  set_alarm(id, due_at)
  enqueue(id, h.queue, h.priority, h.lane, place, false)
  count(h.queue, h.lane, 'waiting', -1)
  count(h.queue, h.lane, 'queued', 1)
  turn.awake[h.queue] = true
end

-- What every move must know of its task, and what those must that touch a queue or ask for a clock.
local HEAD = { 'state', 'fence', 'rev', 'queue', 'generation', 'events', 'lease_until' }
local REST = { 'lane', 'final', 'due_at', 'priority', 'place', 'waiting_for' }

-- Of the fields `names`, which begin with HEAD; nil: no such task. Also those fields as they are.
local function head_of(key, names)
  local had = call('HMGET', key, unpack(names))
  if not had[4] then return nil end
  return { state = had[1] or 'queued', fence = tonumber(had[2] or 0), rev = tonumber(had[3] or 0),
    queue = had[4], generation = tonumber(had[5] or 1), events = tonumber(had[6] or 0),
    offered = had[1] == 'running' and not had[7] }, had
end

local function add_rest(key, h)
  local rest = call('HMGET', key, unpack(REST))
  h.lane, h.final, h.due_at = rest[1] or 'primary', number(rest[2]), number(rest[3])
  h.priority, h.place, h.waiting_for = tonumber(rest[4] or 1), tonumber(rest[5]), rest[6] or nil
  return h
end

local function whole_head_of(key)
  local h = head_of(key, HEAD)
  return h and add_rest(key, h)
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

-- Returns its new place in a queue, if it has one now.
local function take_place(id, h, kind, now)
  if kind.to == 'queued' then
    local place = not kind.front and next_place() - (kind.ahead and AHEAD or 0) or nil
    enqueue(id, h.queue, h.priority, h.lane, place or h.place, kind.front or kind.ahead)
    return place
  elseif kind.to == 'scheduled' then
    call('ZADD', P .. 'tasks:scheduled', (kind.set.run_at or kind.due_at) / 1000, id)
  elseif kind.to == 'dead' then
    call('RPUSH', P .. 'dlq:tasks', id)
    local key = key_of(id)
    local type_, payload, retries = unpack(call('HMGET', key, 'type', 'payload', 'retries'))
    call('HSET', P .. 'dlq:task:' .. id, 'task_id', id, 'type', type_, 'queue', h.queue,
      'payload', long_field(key, 'payload', payload) or '', 'error', kind.set.error or '',
      'retry_count', retries or 0, 'failed_at', now)
  end
end

-- Most moves of a call are alike but for the task, its fence and rev, and the result. What they share
-- is told once, a kind; a move is { task, fence, rev, which kind, result, more }.
local function prepare(kinds)
  for _, kind in ipairs(kinds) do
    kind.plain = kind.expect == 'running' and kind.to ~= 'queued' and not kind.due_by
    if not kind.due_at then kind.unset[#kind.unset + 1] = 'due_at' end
    kind.reads = {}
    for at, name in ipairs(HEAD) do kind.reads[at] = name end
    for at, name in ipairs(kind.unset) do kind.reads[#HEAD + at] = name end
    for _, note in ipairs(kind.events) do kind.ends = kind.ends or FINAL_EVENTS[note[1]] end
  end
  return kinds
end

local function refusal(h, kind, fence, rev)
  if not h then return 'gone' end
  if h.fence ~= fence then return 'stale' end
  if h.state ~= kind.expect or h.rev ~= rev then return 'moved' end
  if kind.due_by and not (h.due_at and h.due_at <= kind.due_by) then return 'early' end
end

local function tell_move(id, kind, result)
  tell_of(id)
  if LIVE[kind.to] or not LIVE[kind.expect] then return end
  local error = kind.set.error
  local told = #(result or '') <= TELLING and #(error or '') <= TELLING
  news.endings[#news.endings + 1] = told
    and { id, kind.to, result or NIL, error or NIL, kind.set.finished_at } or { id }
end

local function bear(children, turn)
  for _, child in ipairs(children) do
    local task = turn.births[child[2]].task
    local receipt = admit(child, turn.births, turn.asks, turn.now, turn.claimed)
    if receipt == 'fresh' and task.state == 'queued' then turn.awake[task.queue] = true end
  end
end

-- It leaves where it stands and stands somewhere else: into `flat` goes what its task keeps of that.
local function change_place(flat, id, h, kind, turn)
  leave_place(id, h)
  count(h.queue, h.lane, kind.expect, -1)
  h.lane = kind.set.lane or h.lane
  count(h.queue, h.lane, kind.to, 1)
  local place, at = take_place(id, h, kind, turn.now), #flat
  if place then
    flat[at + 1], flat[at + 2] = 'place', place
    at = at + 2
  end
  if not LIVE[h.state] then flat[at + 1], flat[at + 2] = 'final', h.generation end
end

local function look_again(id, kind)
  local from, to = kind.expect == 'running', kind.to == 'running'
  if to then set_lease(id, kind.due_at or FOREVER) else set_alarm(id, kind.due_at) end
  if from and not to then set_lease(id, nil) elseif to and not from then set_alarm(id, nil) end
end

local function read_mail(id, key, kind, seen, turn)
  if seen > 0 then
    call('LTRIM', key .. ':mail', 2 * seen, -1)
    call('HINCRBY', key, 'mail', -seen)
  end
  if kind.to == 'waiting' and tonumber(call('HGET', key, 'mail') or 0) > 0 then
    -- Compare-and-park: a letter that came after the claim must not wait for another.
    wake(id, key, whole_head_of(key), turn)
  end
end

local function move_on(move, turn)
  local id, kind, result, more = move[1], turn.kinds[move[4]], move[5], move[6]
  local key = key_of(id)
  local h, had = head_of(key, kind.reads)
  if h and not kind.plain then add_rest(key, h) end
  local refused = refusal(h, kind, move[2], move[3])
  if refused then return refused end
  local generation = kind.set.generation or h.generation
  if kind.ends then
    local ended = not LIVE[h.state] and h.generation or h.final
    if ended == generation then error('a second final event for ' .. id) end
  end
  local flat = { 'state', kind.to, 'rev', h.rev + 1 }
  if kind.due_at then flat[5], flat[6] = 'due_at', kind.due_at end
  if result then flat[#flat + 1], flat[#flat + 2] = 'result', put_long(key, 'result', result) end
  if h.offered and (kind.to ~= 'running' or kind.set.lease_until) then
    count(h.queue, call('HGET', key, 'lane') or 'primary', 'offered', -1)
  end
  if kind.to ~= kind.expect or kind.ahead then change_place(flat, id, h, kind, turn) end
  flatten(flat, key, kind.set)
  write_events(flat, id, h.events, generation, kind.events)
  call('HSET', key, unpack(flat))
  unset_fields(key, kind.unset, had, #HEAD + 1)
  look_again(id, kind)
  if kind.to == 'queued' then turn.awake[h.queue] = true end
  if more then
    if more.spawn then bear(more.spawn, turn) end
    if more.seen then read_mail(id, key, kind, more.seen, turn) end
  end
  if news then tell_move(id, kind, result) end
  return 'applied'
end

-- The letters of a move come last; one whose reader goes on at once, as was decided, is not posted.
local function post_letters(more, turn)
  if not more then return end
  local answer = more.answer
  if answer and move_on(answer, turn) == 'applied' then
    turn.answered[#turn.answered + 1] = answer[1]
    post_letters(answer[6], turn)
  else
    for _, letter in ipairs(more.letters or NONE) do deliver(letter, turn) end
  end
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

local function apply(keys, args)
  local now, request = begin_telling(keys, args)
  local kinds, births = prepare(request[4]), prepare_births(request[5], #request[2])
  local turn, verdicts = begin_turn(now, request[3], kinds, births), {}
  for at, move in ipairs(request[2]) do
    verdicts[at] = move_on(move, turn)
    if verdicts[at] == 'applied' then post_letters(move[6], turn) end
  end
  pay(turn.owed)
  if news then news.queues = turn.awake end
  return finish({ verdicts, names_of(turn.awake), turn.claimed, turn.answered })
end

local function post(keys, args)
  local now, request = begin_telling(keys, args)
  local turn, verdicts = begin_turn(now, {}, {}, {}), {}
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
  set_alarm(id, nil) -- what is forgotten is over, and not running
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
      elseif call('HEXISTS', key, 'due_at') == 1 then
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

local function delete_document(keys, args)
  local _, request = begin(keys, args)
  local name, field, expect = P .. 'onward:doc:' .. request[2], request[3], request[4]
  local found = call('HGET', name, field)
  if not found or tonumber(string.match(found, '^%d+')) ~= expect then return false end
  return call('HDEL', name, field)
end

local function register(name, callback, ...)
  name = LIBRARY .. '_' .. name
  redis.register_function({ function_name = name, callback = callback, flags = { ... } })
end

register('insert', insert) -- refused when memory is full; what is there must still drain:
register('claim', claim, 'allow-oom')
register('extend', extend, 'allow-oom')
register('apply', apply, 'allow-oom')
register('post', post, 'allow-oom')
register('purge', purge, 'allow-oom')
register('delete_document', delete_document, 'allow-oom')
register('put_document', put_document, 'allow-oom')
