-- What becomes of tasks: held, moved on, written to, forgotten. Comes after intake.lua.

local whole_head_of, scoped, register -- what later parts use: a library may have 200 local names at a time

do

local function hold_on(hold)
  local key = key_of(hold.task)
  local h = call('HMGET', key, 'state', 'fence', 'attempt_by', 'expires_at', 'cancel_by',
    'events', 'generation', 'lease_until', 'queue', 'lane')
  if h[1] ~= 'running' or tonumber(h[2] or 0) ~= hold.fence then return 'lost' end
  local due_at = least(hold['until'], number(h[3]), number(h[4]), number(h[5]))
  local have, generation, notes = tonumber(h[6] or 0) + 0, tonumber(h[7] or 1) + 0, hold.notes or NONE
  -- Everything is read. From here on nothing raises.
  if not h[8] then count(h[9], h[10] or 'primary', 'offered', -1) end
  local flat, many = { 'lease_until', hold['until'], 'due_at', due_at }, 4
  if hold.progress then flat[5], flat[6], many = 'progress', hold.progress, 6 end
  put_all('HSET', key, flat, write_events(flat, many, hold.task, have, generation, notes))
  set_lease(hold.task, due_at)
  if #notes > 0 then publish_task(hold.task) end
  return h[5] and 'cancel' or 'held'
end

local function extend(keys, args)
  local _, request = begin_publishing(keys, args)
  local pulses = {}
  each('extend', request[2], function(hold, at) pulses[at] = hold_on(hold) end,
    function(at)
      pulses[at] = 'lost'
      return request[2][at].task
    end)
  return finish(pulses)
end

-- What the steps of one call share: the asks that come with it and what they claimed, queues with
-- new work, and tasks whose answers were applied.
local function begin_batch(now, asks, templates, task_templates)
  local batch = { now = now, asks = asks, templates = templates, task_templates = task_templates,
    claimed = {}, awake = {}, answered = {} }
  fill(asks, now, batch.claimed)
  return batch
end

-- Only a decision releases a task that waits for approval: a letter must not pass for one.
local function wakes(h) return h.state == 'waiting' and h.waiting_for ~= 'approval' end

-- All that must be known of it is in `h`, and its place at the end of its queue.
local function wake(id, key, h, due_at, place, batch)
  local flat, many = { 'state', 'queued', 'rev', h.rev + 1, 'place', place, 'queued_at', stamp }, 8
  if due_at then flat[9], flat[10], many = 'due_at', due_at, 10 end
  many = write_events(flat, many, id, h.events, h.generation, { { 'task.woken' } })
  put_all('HSET', key, flat, many)
  if due_at then put('HDEL', key, 'waiting_for') else put('HDEL', key, 'waiting_for', 'due_at') end
  set_alarm(id, due_at)
  later('RPUSH', lane_key(h.queue, h.priority, h.lane, h.partition), id)
  if h.partition then enter(lane_name(h.queue, h.priority, h.lane), h.partition) end
  if h.batch then count_batch(h.batch, 'waiting', 'queued') end
  count(h.queue, h.lane, 'waiting', -1)
  count(h.queue, h.lane, 'queued', 1)
  batch.awake[h.queue] = true
end

-- What every move must know of its task, and what those must that touch a queue or ask for a clock.
local HEAD = { 'state', 'fence', 'rev', 'queue', 'generation', 'events', 'lease_until' }
local REST = { 'lane', 'final', 'due_at', 'priority', 'place', 'waiting_for', 'strict', 'started_at',
  'type' }

-- Of the fields `names`, which begin with HEAD; nil: no such task. Also those fields as they are.
local function head_of(key, names)
  local had = call('HMGET', key, unpack(names))
  if not had[4] then return nil end
  local h = { state = had[1] or 'queued', fence = tonumber(had[2] or 0), rev = tonumber(had[3] or 0),
    queue = had[4], generation = tonumber(had[5] or 1), events = tonumber(had[6] or 0),
    offered = had[1] == 'running' and not had[7] }
  if had[5] then -- a task without a generation has none of these (see `prepare_templates`)
    local rare = call('HMGET', key, unpack(RARE))
    h.partition, h.batch = rare[1] ~= '' and rare[1] or nil, rare[2] or nil
    h.unique_key, h.debounce_key = rare[3] or nil, rare[4] or nil
  end
  if not (h.fence and h.rev and h.generation and h.events) then error('a number is none') end
  return h, had
end

local function add_rest(key, h)
  local rest = call('HMGET', key, unpack(REST))
  h.lane, h.final, h.due_at = rest[1] or 'primary', number(rest[2]), number(rest[3])
  h.priority, h.place, h.waiting_for = tonumber(rest[4] or 1), tonumber(rest[5]), rest[6] or nil
  h.strict, h.started, h.type = rest[7] and true, rest[8] and true, rest[9]
  if not (h.priority and h.place) then error('a number is none') end
  return h
end

function whole_head_of(key)
  local h = head_of(key, HEAD)
  return h and add_rest(key, h)
end

-- `most` letters and bytes may lie unread, where there is a bound: how a child ended is always
-- delivered, and there are no more of those than children.
local function deliver(letter, batch, most, most_bytes)
  local key = key_of(letter.to)
  local h = whole_head_of(key)
  if not h or not LIVE[h.state] then return 'gone' end
  local size = #letter.name + #letter.body
  if most then
    local lie = call('HMGET', key, 'mail', 'mail_bytes')
    if tonumber(lie[1] or 0) >= most or tonumber(lie[2] or 0) + size > most_bytes then
      return 'refused'
    end
  end
  local woken, due_at, place = wakes(h)
  if woken then due_at, place = number(call('HGET', key, 'expires_at')), next_place() end
  -- Everything is read. From here on nothing raises.
  put('RPUSH', mail_of(letter.to), letter.name, letter.body)
  put('HINCRBY', key, 'mail', 1)
  put('HINCRBY', key, 'mail_bytes', size)
  if woken then wake(letter.to, key, h, due_at, place, batch) end
  publish_task(letter.to)
  return 'applied'
end

local function leave_place(id, h)
  if h.state == 'queued' then
    leave_line(lane_name(h.queue, h.priority, h.lane), h.partition or '', h.type, id)
  elseif h.state == 'scheduled' then put('ZREM', P .. 'onward:scheduled', id)
  elseif h.state == 'dead' then put('ZREM', P .. 'onward:dead', id)
  elseif h.waiting_for == 'approval' then put('ZREM', P .. 'onward:approvals', id) end
end

-- Most moves of a call are alike but for the task, its fence and rev, and the result. What they share
-- is sent once, as a template; a move is { task, fence, rev, which template, result, more }. Of its hash,
-- too, only what differs is filled in for each, as with submissions.
local function prepare(templates)
  for _, template in ipairs(templates) do
    template.plain = template.expect == 'running' and template.to ~= 'queued' and template.to ~= 'scheduled'
      and not template.due_by and template.type
    template.retags = template.set.tags and cjson.decode(template.set.tags)
    template.rekeys = template.set.unique_key and true
    for _, name in ipairs(template.unset) do
      if name == 'started_at' then template.restarts = true end
      if name == 'tags' then template.retags = NONE end
      if name == 'unique_key' then template.rekeys = true end
    end
    if not template.due_at then template.unset[#template.unset + 1] = 'due_at' end
    template.reads = {}
    for at, name in ipairs(HEAD) do template.reads[at] = name end
    for at, name in ipairs(template.unset) do template.reads[#HEAD + at] = name end
    for _, note in ipairs(template.events) do template.ends = template.ends or FINAL_EVENTS[note[1]] end
    template.flat, template.there = { 'state', template.to, 'rev', 0, 'due_at', template.due_at }, {}
    template.many, template.long = flatten(template.flat, template.due_at and 6 or 4, template.set)
    template.due_text = template.due_at and text(template.due_at)
    for at = 1, template.many do
      local value = template.flat[at]
      if type(value) == 'number' then template.flat[at] = text(value) end -- once, and not for each task
    end
  end
  return templates
end

-- By its unique key others meet it while it lives; nil: it has the key from now on, or not any more.
local function hold_unique(key, id, from, to)
  if LIVE[from] and not LIVE[to] then put('ZREM', holders_of(key), id) end
  if from == 'running' and to ~= from then put('ZREM', runners_of(key), id) end
  local born = (LIVE[to] and not LIVE[from] or to == 'running' and from ~= to)
    and (put('ZSCORE', P .. 'onward:index', id) or 0)
  if LIVE[to] and not LIVE[from] then put('ZADD', holders_of(key), born, id) end
  if to == 'running' and from ~= to then run_unique(key, id, born) end
end

-- What else knows in which state it is: its batch, and the keys by which others meet it.
local function follow_state(id, h, from, to)
  if h.batch and from ~= to then count_batch(h.batch, from, to) end
  if h.unique_key then hold_unique(h.unique_key, id, from, to) end
  if h.debounce_key and from == 'scheduled' and to ~= from then
    local key = debounce_key(h.debounce_key)
    if put('GET', key) == id then put('DEL', key) end
  end
end

local function refusal(h, template, fence, rev)
  if not h then return 'gone' end
  if h.fence ~= fence then return 'stale' end
  if h.state ~= template.expect or h.rev ~= rev then return 'moved' end
  if template.due_by and not (h.due_at and h.due_at <= template.due_by) then return 'early' end
end

local function publish_move(id, template, result)
  publish_task(id)
  if LIVE[template.to] or not LIVE[template.expect] then return end
  local error = template.set.error
  local sent = #(result or '') <= MOST_SENT and #(error or '') <= MOST_SENT
  news.endings[#news.endings + 1] = sent
    and { id, template.to, result or NIL, error or NIL, template.set.finished_at } or { id }
end

local function insert_children(children, batch)
  for _, child in ipairs(children) do
    local task = batch.task_templates[child[2]].task
    local receipt = attempt('insert', child[1], admit, child, batch.task_templates, batch.asks, batch.now,
      batch.claimed)
    if receipt == 'fresh' and task.state == 'queued' then batch.awake[task.queue] = true end
  end
end

-- Where in its queue it will stand, for a move that leads there: its place, if it gets a new one,
-- the list, and behind which id, if not at the end.
local function seek_place(id, h, template)
  local list = lane_key(h.queue, h.priority, template.set.lane or h.lane, h.partition)
  local place = not template.front and next_place() - (template.ahead and AHEAD or 0) or nil
  if not (template.front or template.ahead) then return place, list end
  return place, list, find_predecessor(list, id, place or h.place)
end

-- It leaves where it stands and stands somewhere else: into `flat`, behind its `at` values, goes what its
-- task keeps of that. Returns how many it has now.
local function change_place(flat, at, id, h, template, now, place, list, behind)
  leave_place(id, h)
  count(h.queue, h.lane, template.expect, -1)
  h.lane = template.set.lane or h.lane
  count(h.queue, h.lane, template.to, 1)
  if template.to == 'scheduled' then
    put('ZADD', P .. 'onward:scheduled', template.set.run_at or template.due_at, id)
  elseif template.to == 'dead' then put('ZADD', P .. 'onward:dead', now, id)
  elseif template.set.waiting_for == 'approval' then put('ZADD', P .. 'onward:approvals', now, id)
  elseif not list then -- nothing: it stands nowhere
  elseif behind then put('LINSERT', list, 'AFTER', behind, id)
  elseif template.front or template.ahead then put('LPUSH', list, id)
  else later('RPUSH', list, id) end
  if list and h.partition then enter(lane_name(h.queue, h.priority, h.lane), h.partition) end
  if place then
    flat[at + 1], flat[at + 2] = 'place', place
    at = at + 2
  end
  if not LIVE[h.state] then
    flat[at + 1], flat[at + 2] = 'final', h.generation
    at = at + 2
  end
  return at
end

-- Whether it runs, or is in strict order and waits to be tried again.
local function occupies(h, state, restarts)
  return state == 'running' or state == 'scheduled' and h.strict and h.started and not restarts
end

-- What it occupies, before this move and after it. The partition of one that ends may start another.
local function settle_use(h, from, template)
  local to, type_ = template.to, h.type or template.type
  local before, after = occupies(h, from), occupies(h, to, template.restarts)
  if before and from ~= 'running' then occupy_waiting(h.queue, -1) end
  if after and to ~= 'running' then occupy_waiting(h.queue, 1) end
  if before and not after then
    occupy(h.queue, type_, h.partition, -1)
    if h.partition then leave(h.partition) end
  elseif after and not before then occupy(h.queue, type_, h.partition, 1) end
end

local function look_again(id, template)
  local from, to = template.expect == 'running', template.to == 'running'
  if to then set_lease(id, template.due_text or FOREVER) else set_alarm(id, template.due_text) end
  if from and not to then set_lease(id, nil) elseif to and not from then set_alarm(id, nil) end
end

-- How many bytes of letters stay when the first `seen` have been read, of `mail`.
local function bytes_left(id, mail, seen)
  local bytes = 0
  if mail > seen then
    for _, part in ipairs(call('LRANGE', mail_of(id), 2 * seen, -1)) do bytes = bytes + #part end
  end
  return bytes
end

-- What is known before the first write of a move that has read letters: how many stay, their bytes,
-- and, if the task would sleep over them, the rest of what waking it takes.
local function look_into_mail(id, key, h, template, seen)
  local mail = tonumber(call('HGET', key, 'mail') or 0)
  local left = { seen = seen, many = mail - seen, bytes = seen > 0 and bytes_left(id, mail, seen) }
  if template.to == 'waiting' and left.many > 0 then
    if not h.lane then add_rest(key, h) end
    left.expires_at = template.set.expires_at or number(call('HGET', key, 'expires_at'))
    left.place = next_place()
  end
  return left
end

local function read_mail(id, key, h, template, generation, left, batch)
  if left.seen > 0 then
    put('LTRIM', mail_of(id), 2 * left.seen, -1)
    put('HSET', key, 'mail', left.many, 'mail_bytes', left.bytes)
  end
  if not left.place then return end
  -- Compare-and-park: a letter that came after the claim must not wait for another.
  local parked = { state = 'waiting', waiting_for = template.set.waiting_for, rev = h.rev + 1,
    events = h.events + #template.events, generation = generation, queue = h.queue, lane = h.lane,
    priority = h.priority, partition = h.partition, batch = h.batch }
  if wakes(parked) then wake(id, key, parked, left.expires_at, left.place, batch) end
end

local function move_on(move, batch)
  local id, template, result, more = move[1], batch.templates[move[4]], move[5], move[6]
  local key = key_of(id)
  local h, had = head_of(key, template.reads)
  if h and not template.plain then add_rest(key, h) end
  local refused = refusal(h, template, move[2], move[3])
  if refused then return refused end
  local generation = template.set.generation or h.generation
  if template.ends then
    local ended = not LIVE[h.state] and h.generation or h.final
    if ended == generation then return 'refused' end -- a second final event of one generation
  end
  local left_offer = h.offered and (template.to ~= 'running' or template.set.lease_until)
    and (call('HGET', key, 'lane') or 'primary')
  local leaves, place, list, behind = template.to ~= template.expect or template.ahead, nil, nil, nil
  if leaves and template.to == 'queued' then place, list, behind = seek_place(id, h, template) end
  local tags = template.retags and call('HGET', key, 'tags')
  local untagged = tags and cjson.decode(tags) or NONE
  local born = template.retags and call('ZSCORE', P .. 'onward:index', id)
  local left
  if more then
    if more.seen then left = look_into_mail(id, key, h, template, more.seen) end
    -- A child that could not be born would leave its parent waiting for ever.
    for _, child in ipairs(more.spawn or NONE) do
      depth(batch.task_templates[child[2]].task.queue)
      if child[4] then call('HMGET', key_name(child[4]), 'body', 'task') end
    end
  end
  -- Everything is read. From here on nothing raises.
  local flat, many = template.flat, template.many
  flat[4] = text(h.rev + 1)
  if result then
    flat[many + 1], flat[many + 2] = 'result', put_long(id, 'result', result)
    many = many + 2
  end
  if left_offer then count(h.queue, left_offer, 'offered', -1) end
  if h.batch or h.unique_key or h.debounce_key then follow_state(id, h, template.expect, template.to) end
  if template.rekeys then -- a newer one has taken its place, with a key of its own or none
    if h.unique_key then hold_unique(h.unique_key, id, template.to, nil) end
    if template.set.unique_key then hold_unique(template.set.unique_key, id, nil, template.to) end
  end
  if template.set.queue and template.to == template.expect and template.set.queue ~= h.queue then
    count(h.queue, h.lane, template.expect, -1)
    count(template.set.queue, h.lane, template.to, 1)
  end
  if template.set.run_at and template.to == 'scheduled' and not leaves then
    put('ZADD', P .. 'onward:scheduled', template.set.run_at, id)
  end
  if leaves then many = change_place(flat, many, id, h, template, batch.now, place, list, behind) end
  for _, tag in ipairs(untagged) do put('ZREM', P .. 'onward:tag:' .. tag, id) end
  for _, tag in ipairs(template.retags or NONE) do put('ZADD', P .. 'onward:tag:' .. tag, born, id) end
  if template.to ~= template.expect then settle_use(h, template.expect, template) end
  for name, value in pairs(template.long or NONE) do
    flat[many + 1], flat[many + 2] = name, put_long(id, name, value)
    many = many + 2
  end
  put_all('HSET', key, flat, write_events(flat, many, id, h.events, generation, template.events))
  unset_fields(key, id, template.unset, had, #HEAD + 1, template.there)
  look_again(id, template)
  if template.to == 'queued' then batch.awake[h.queue] = true end
  if more then
    for _, given in ipairs(more.keys or NONE) do
      if put('EXISTS', key_name(given)) == 0 then
        put('HSET', key_name(given), 'body', given.body, 'task', id)
        put('ZADD', P .. 'onward:forget', tonumber(stamp) + KEPT_MS, key_name(given))
      end
    end
    if more.spawn then insert_children(more.spawn, batch) end
    if left then read_mail(id, key, h, template, generation, left, batch) end
  end
  if news then publish_move(id, template, result) end
  return 'applied'
end

-- The letters of a move come last; one whose reader goes on at once, as was decided, is not posted.
local function post_letters(more, batch)
  if not more then return end
  local answer = more.answer
  if answer and attempt('apply', answer[1], move_on, answer, batch) == 'applied' then
    batch.answered[#batch.answered + 1] = answer[1]
    post_letters(answer[6], batch)
  else
    for _, letter in ipairs(more.letters or NONE) do
      attempt('post', letter.to, deliver, letter, batch)
    end
  end
end

-- A letter to each batch of tasks that has none left that is not over.
local function end_batches(batch)
  for id in pairs(ended or NONE) do
    local left = attempt('batch', id, live_in, id)
    if left and left <= 0 then
      attempt('post', id, deliver, { to = id, name = 'batch_over', body = 'null' }, batch)
    end
  end
end

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  return names
end

local function apply(keys, args)
  local now, request = begin_publishing(keys, args)
  local templates, task_templates = prepare(request[4]), prepare_templates(request[5], #request[2])
  prepare_limits(request[6])
  local batch, verdicts = begin_batch(now, request[3], templates, task_templates), {}
  each('apply', request[2], function(move, at)
    verdicts[at] = move_on(move, batch)
    if verdicts[at] == 'applied' then post_letters(move[6], batch) end
  end, function(at)
    verdicts[at] = verdicts[at] or 'refused'
    return request[2][at][1]
  end)
  end_batches(batch)
  if news then
    for queue in pairs(batch.awake) do news.queues[queue] = true end
    for _, queue in ipairs(request[7] or NONE) do news.queues[queue] = true end
  end
  return finish({ verdicts, names_of(batch.awake), batch.claimed, batch.answered })
end

local function post(keys, args)
  local now, request = begin_publishing(keys, args)
  local batch, verdicts = begin_batch(now, {}, {}, {}), {}
  for at, letter in ipairs(request[2]) do
    verdicts[at] = attempt('post', letter.to, deliver, letter, batch, request[3], request[4])
      or 'refused'
  end
  if news then news.queues = batch.awake end
  return finish({ verdicts, names_of(batch.awake), {}, {} })
end

local function behind(a, b) -- log ids: is a before b?
  local am, as = string.match(a, '(%d+)-(%d+)')
  local bm, bs = string.match(b, '(%d+)-(%d+)')
  am, as, bm, bs = tonumber(am), tonumber(as), tonumber(bm), tonumber(bs)
  return am < bm or (am == bm and as < bs)
end

local UNSCOPED_S = 30 * 24 * 3600

-- The scope and key of an idempotency key's key.
function scoped(skey) return string.sub(skey, #P + #'onward:key:' + 1) end

-- Everything of a task goes; what it takes to know that is read first.
local function forget(id, key, h, forget_at)
  local skey, session, tags = unpack(call('HMGET', key, 'skey', 'session', 'tags'))
  tags = tags and cjson.decode(tags) or NONE
  local lone = session and call('ZCARD', P .. 'onward:session:' .. session) <= 1
  local entries = {}
  for n = 1, h.events do entries[n] = call('HGET', key, 'e' .. n) or '0-0' end
  -- Everything is read. From here on nothing raises.
  leave_place(id, h)
  put_all('XDEL', LOG, entries, #entries)
  put('DEL', key, long_of('payload', id), long_of('result', id), mail_of(id))
  put('DEL', P .. 'onward:effect:|' .. id, P .. 'onward:effects:' .. id)
  set_alarm(id, nil) -- what is forgotten is over, and not running
  later('ZREM', P .. 'onward:index', id)
  if session then put('ZREM', P .. 'onward:session:' .. session, id) end
  if lone then put('ZREM', P .. 'onward:sessions', session) end
  if h.batch then later('ZREM', P .. 'onward:in-batch:' .. h.batch, id) end
  for _, tag in ipairs(tags) do later('ZREM', P .. 'onward:tag:' .. tag, id) end
  count(h.queue, h.lane, h.state, -1)
  if h.queue == 'onward:batches' then put('DEL', batch_key(id)) end
  if skey then later('ZADD', P .. 'onward:forget', forget_at, skey) end
end

-- Returns whether it is gone.
local function purge_one(id, slowest, postpone_until, forget_at)
  local key = key_of(id)
  local h = whole_head_of(key)
  if not h or LIVE[h.state] then return false end
  local logged = call('HGET', key, 'e' .. h.events)
  if not (slowest and logged and behind(slowest, logged)) then
    forget(id, key, h, forget_at)
    return true
  end
  if call('HEXISTS', key, 'due_at') == 1 then
    -- A reader of the log has not read its events yet: it stays a while, out of the sweep's way.
    put('HSET', key, 'due_at', postpone_until)
    set_alarm(id, postpone_until)
  end
  return false
end

local function purge(keys, args)
  local now, request = begin(keys, args)
  local gone = 0
  for _, id in ipairs(request[2]) do
    if attempt('purge', id, purge_one, id, request[3], request[4], request[5]) then gone = gone + 1 end
  end
  local over = attempt('purge', 'keys', call, 'ZRANGEBYSCORE', P .. 'onward:forget', '-inf', now,
    'LIMIT', 0, 1000)
  for _, skey in ipairs(over or NONE) do
    put('DEL', skey, P .. 'onward:effect:' .. scoped(skey))
    -- Made before effects had scopes: another scope's task may still need them, for as long as it lives.
    put('EXPIRE', P .. 'onward:effects:' .. string.match(scoped(skey), '|(.*)$'), UNSCOPED_S)
    put('ZREM', P .. 'onward:forget', skey)
  end
  return finish(gone)
end

-- Ids in the alarms whose rows cannot be read: nothing can be decided about them, and they must not stand
-- before the readable ones.
local function set_aside(keys, args)
  local _, request = begin(keys, args)
  for _, id in ipairs(request[2]) do
    put('ZREM', P .. 'onward:running', id)
    put('ZREM', P .. 'onward:alarms', id)
    if put('EXISTS', key_of(id)) == 1 then put_aside(id) end
  end
  return finish(true)
end

local function expired(value, now)
  local expiry = value and string.match(value, '^%d+' .. SEP .. '(%d*)' .. SEP)
  return expiry and expiry ~= '' and tonumber(expiry) <= now
end

-- Documents whose time is over, of any kind; one that was put again since has another end.
local function drop_ended(now)
  local ends = P .. 'onward:ends'
  for _, of in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)) do
    local kind, field = string.match(of, '^(.-)' .. SEP .. '(.*)$')
    local name = P .. 'onward:doc:' .. (kind or '')
    if kind and expired(call('HGET', name, field), now) then put('HDEL', name, field) end
    put('ZREM', ends, of)
  end
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
  if not expires_at then put('PERSIST', name)
  elseif put('HLEN', name) == 1 then put('PEXPIRE', name, math.max(1, expires_at - now))
  else put('PEXPIRE', name, math.max(1, expires_at - now), 'GT') end
  if expires_at then put('ZADD', P .. 'onward:ends', expires_at, request[2] .. SEP .. field) end
  attempt('documents', 'ended', drop_ended, now)
  return version + 1
end

local function delete_document(keys, args)
  local _, request = begin(keys, args)
  local name, field, expect = P .. 'onward:doc:' .. request[2], request[3], request[4]
  local found = call('HGET', name, field)
  if not found or tonumber(string.match(found, '^%d+')) ~= expect then return false end
  return call('HDEL', name, field)
end

-- Every command that `put` may be called with, on keys of its own: returns the error of the first one
-- that Redis refuses (an ACL, say), so that a server learns of it before it writes a task.
local function rehearse(keys, args)
  begin(keys, args)
  local hash, list, zset, stream, text_, set = 'hash', 'list', 'zset', 'stream', 'text', 'set'
  local function on(kind) return P .. 'onward:rehearsal:' .. kind end
  local commands = {
    { 'HSET', hash, 'a', 1, 'b', 1 }, { 'HINCRBY', hash, 'a', 1 }, { 'HDEL', hash, 'a' },
    { 'RPUSH', list, 'a', 'b', 'c', 'd' }, { 'LPUSH', list, 'e' }, { 'LREM', list, 1, 'a' },
    { 'LINSERT', list, 'AFTER', 'b', 'f' }, { 'LPOP', list, 1 }, { 'LTRIM', list, 0, 0 },
    { 'ZADD', zset, 1, 'a', 1, 'b' }, { 'ZREM', zset, 'a' }, { 'SET', text_, 'a' },
    { 'SADD', set, 'a', 'b' }, { 'SREM', set, 'a' }, { 'PERSIST', hash },
    { 'XADD', stream, '*', 'a', 'b' }, { 'XDEL', stream, '0-0' },
    { 'PEXPIRE', hash, 1000 }, { 'PEXPIRE', list, 1000 }, { 'PEXPIRE', zset, 1000 },
    { 'PEXPIRE', stream, 1000 }, { 'PEXPIRE', set, 1000 }, { 'EXPIRE', hash, 1 }, { 'DEL', text_ },
    { 'HSETNX', hash, 'c', 1 },
  }
  for _, command in ipairs(commands) do
    command[2] = on(command[2])
    if not put(unpack(command)) then return faults[1] end
  end
  for _, kind in ipairs({ hash, list, zset, stream, set }) do put('DEL', on(kind)) end
  return ''
end

function register(name, callback, ...)
  name = LIBRARY .. '_' .. name
  redis.register_function({ function_name = name, callback = callback, flags = { ... } })
end

register('insert', insert) -- refused when memory is full; what is there must still drain:
register('claim', claim, 'allow-oom')
register('extend', extend, 'allow-oom')
register('apply', apply, 'allow-oom')
register('post', post, 'allow-oom')
register('purge', purge, 'allow-oom')
register('set_aside', set_aside, 'allow-oom')
register('delete_document', delete_document, 'allow-oom')
register('put_document', put_document, 'allow-oom')
register('rehearse', rehearse, 'allow-oom')

end
