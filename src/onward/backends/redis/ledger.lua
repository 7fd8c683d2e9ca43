#!lua name=onward4
-- The ledger in Redis. Every function takes one key, the prefix ("" or "{onward}:" for a cluster, so
-- that all keys share a slot), and one msgpack argument with many items; it checks first and writes
-- last, because a script that fails half way is not rolled back. Nothing here decides: a move says
-- what becomes of a task, and is refused unless state, fence and rev are what it expected.
--
-- The library's number goes up when what functions are asked, or answer, changes: during an upgrade
-- servers of two versions share a ledger, and each calls its own.
--
-- The key space, after the prefix:
--   task:{id}                     hash: the fields of core.task.Task that are not at their default,
--                                 and the store's own: `place` (order in its queue and among all),
--                                 `mail` (letters unread), `final` (last generation that ended
--                                 before this one), `skey` (its idempotency key's key), `e1`, `e2`
--                                 … (where in the log its events are)
--   task:{id}:payload, :output    string, when longer than SHORT (its field is empty then): a long
--                                 value would cost the hash its compact form
--   task:{id}:mail                list of letters, name and body alternating
--   tasks:pending:{lane}[:{queue}][:high|:low]
--                                 list of ids, first in first out; the bare names are the queue HOME
--   tasks:scheduled               zset of ids by run_at, in seconds
--   dlq:tasks, dlq:task:{id}      list of dead tasks' ids, and a hash of why each died
--   metrics:queue:depths          hash: how many by queue and state ({queue}:{state}); the queued ones
--                                 by lane ({queue}:{lane}:queued), and so those of the running ones
--                                 that are only offered
--   metrics:tasks:by_state        hash: how many by state
--   onward:running                zset of running tasks' ids by due_at
--   onward:alarms                 zset of other tasks' ids by due_at, where they have one
--   onward:index                  zset of ids by place at birth: what `find` walks, newest first
--   onward:session:{session}      the same of one session's tasks
--   onward:sessions               zset of sessions by the place of the newest task of each
--   onward:events                 stream: the event log and outbox; of an entry `t` is the task, and
--                                 `e` number, generation, type, instant and data, told apart by SEP
--   onward:place                  string: the last place given
--   onward:layout                 string: the number of this layout (see client.py)
--   onward:key:{scope}|{key}      hash: body and task of an idempotency key
--   onward:forget                 zset of such keys by the instant they may be forgotten
--   onward:doc:{kind}             hash of documents
--   onward:effects:{key}          hash of effects by name (written without functions)
--   onward:idle:{library}:{queue} hash: a free hand of each server that has one for this queue, and
--                                 understands what these functions would tell it
--   onward:given:{server}         hash: by queue, the last task that was put into such a hand, for a
--                                 server that did not hear of it; both expire
--
-- A call that changes something tells the other servers so, on the channel onward:bell: who says it,
-- the queues with new work, the tasks with new events, and how tasks have ended. A server is told on
-- a channel of its own, onward:bell:{server}, which task was put into its hands.

local LIBRARY = 'onward4'
local SEP = '\31'
local SHORT = 64
local TELLING = 512 -- of an ending whose result or error is longer only the id is told
local GIVING = 4096 -- a task whose payload is longer is fetched by who works on it
local KNOWN_MS = 3000 -- how long a free hand is believed in; its server says it again every second
local HOME = 'summarize'
local FOREVER = 9e15
local AHEAD = 2 ^ 52 -- less than any place given otherwise, and still a whole number
local LONG = { payload = ':payload', result = ':output' } -- `:result` is the agents'
local FINAL_EVENTS = { ['task.succeeded'] = true, ['task.failed'] = true, ['task.canceled'] = true }
local NIL -- cjson.null, which msgpack writes as nil: a list cannot hold nil itself
local LIVE = { scheduled = true, queued = true, running = true, waiting = true }
local MOST = 1000 -- arguments of one command, an even number
local FEW = 8 -- submissions of one call; with more of them it pays to prepare what they share
local LANES = { 'primary', 'retry' }
local BY_LANE = { queued = true, offered = true } -- what is counted by lane, too
local PRIORITIES = { [0] = ':high', [1] = '', [2] = ':low' }

local P, LOG -- the prefix of this call, and the event log's key
local stamp -- the instant of this call, as text
local call -- redis.call, which does not exist while loading
local delta, queued, stored -- counts changed by this call, of queued tasks by queue, and as it was
local batches, alarms, leases -- what is written at the end of this call, many in one command
local news -- what others are told when this call is over; nil: nobody else listens
local board, hands, given -- what this server says of its free hands, those of others by queue, and
-- what went into them in this call
local spare, last -- places taken but not given yet, and the last one given

local function begin(keys, args)
  P, LOG, call, NIL, news = keys[1], keys[1] .. 'onward:events', redis.call, cjson.null, nil
  delta, queued, stored, batches, alarms, leases, spare = {}, {}, {}, {}, {}, {}, 0
  local request = cmsgpack.unpack(args[1])
  stamp = string.format('%.0f', request[1])
  return request[1], request
end

local function bell_of(server) return P .. 'onward:bell:' .. server end
local function idle_at(queue) return P .. 'onward:idle:' .. LIBRARY .. ':' .. queue end

local function listeners(channel) return redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0 end

-- The same for a call that has something to tell. Its second argument says who tells it: a server
-- that listens itself, or nobody (''). A third is there if servers may put tasks into each other's
-- hands: what has changed of its own, if anything. What is free no more is taken down at once.
local function begin_telling(keys, args)
  local now, request = begin(keys, args)
  local from = args[2] or ''
  board, hands, given = nil, args[3] and {}, {}
  if hands and args[3] ~= '' then
    board = cmsgpack.unpack(args[3])
    board.from = from
    for _, queue in ipairs(board.gone) do call('HDEL', idle_at(queue), from) end
  end
  local others = listeners(P .. 'onward:bell') - (from == '' and 0 or 1)
  if others > 0 then
    news = { from = from, others = others, queues = {}, tasks = {}, endings = {} }
  end
  return now, request
end

-- What is free once this call is over, for others to see.
local function put_up(now)
  for queue, spare in pairs(board.free) do
    spare.at = now
    call('HSET', idle_at(queue), board.from, cmsgpack.pack(spare))
    call('PEXPIRE', idle_at(queue), KNOWN_MS)
  end
end

-- Said within the move, so that it costs no trip of its own. It may be lost all the same: whoever
-- may not publish (an ACL without channels) must not fail here, with everything written.
local function ring()
  local queues = {}
  for queue in pairs(news.queues) do queues[#queues + 1] = queue end
  local rest = #news.tasks - #given -- of what was given its new owner need not be told again
  if #queues + rest == 0 and (#given == 0 or news.others == 1) then return end
  local said = cmsgpack.pack({ news.from, queues, news.tasks, news.endings })
  redis.pcall('PUBLISH', P .. 'onward:bell', said)
end

-- It listens, or the task would not be its own by now; if it does not hear, it can read.
local function give(hand, queue, row)
  local said, key = cmsgpack.pack(row), P .. 'onward:given:' .. hand.server
  call('HSET', key, queue, said)
  call('PEXPIRE', key, hand.lease_ms)
  redis.pcall('PUBLISH', bell_of(hand.server), said)
end

local function key_of(id) return P .. 'task:' .. id end

local function lane_key(queue, priority, lane)
  local name = P .. 'tasks:pending:' .. lane
  if queue ~= HOME then name = name .. ':' .. queue end
  return name .. PRIORITIES[priority]
end

-- Items for a key, in the order given, by one command at the end of the call, which is always the same
-- for this key.
local function later(command, key, item, other)
  local batch = batches[key]
  if not batch then
    batch = { command, key }
    batches[key] = batch
  end
  batch[#batch + 1] = item
  if other then batch[#batch + 1] = other end
end

local function tell_of(id)
  if news then news.tasks[#news.tasks + 1] = id end
end

local function tell_ready(queue)
  if news then news.queues[queue] = true end
end

-- When to look at a task that is not running, and at one that is; nil: no more.
local function set_alarm(id, due_at) alarms[id] = due_at or false end
local function set_lease(id, due_at) leases[id] = due_at or false end

-- To be read from its end: a queue's name may have colons.
local function tally_of(queue, lane, state)
  if BY_LANE[state] then return queue .. ':' .. lane .. ':' .. state end
  return queue .. ':' .. state
end

-- Kept by state, lane and queue: a text made for each task would cost more than all the counting.
local function count(queue, lane, state, change)
  if state == 'queued' then queued[queue] = (queued[queue] or 0) + change end
  if not BY_LANE[state] then lane = '' end
  local lanes = delta[state]
  if not lanes then lanes = {} delta[state] = lanes end
  local queues = lanes[lane]
  if not queues then queues = {} lanes[lane] = queues end
  queues[queue] = (queues[queue] or 0) + change
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
  for state, lanes in pairs(delta) do
    local sum = 0
    for lane, queues in pairs(lanes) do
      for queue, change in pairs(queues) do
        local name = tally_of(queue, lane, state)
        if change ~= 0 and call('HINCRBY', P .. 'metrics:queue:depths', name, change) == 0 then
          call('HDEL', P .. 'metrics:queue:depths', name)
        end
        sum = sum + change
      end
    end
    if sum ~= 0 and state ~= 'offered' then
      call('HINCRBY', P .. 'metrics:tasks:by_state', state, sum)
    end
  end
end

local function write(batch)
  for at = 3, #batch, MOST do
    call(batch[1], batch[2], unpack(batch, at, math.min(at + MOST - 1, #batch)))
  end
end

-- Scores by member; false: it leaves.
local function write_scores(key, scores)
  local set, unset, many = { 'ZADD', key }, { 'ZREM', key }, 2
  for member, score in pairs(scores) do
    if score then
      set[many + 1], set[many + 2] = score, member
      many = many + 2
    else unset[#unset + 1] = member end
  end
  write(set)
  write(unset)
end

-- Everything that was put off, and the answer.
local function finish(answer)
  for _, batch in pairs(batches) do write(batch) end
  write_scores(P .. 'onward:alarms', alarms)
  write_scores(P .. 'onward:running', leases)
  add_up()
  if news then
    if board then put_up(tonumber(stamp)) end
    for _, gift in ipairs(given) do give(unpack(gift)) end
    ring()
  end
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

-- A whole number as text. Formatting one costs as much as writing it, and most are small.
local SMALL = {}
for n = 0, 255 do SMALL[n] = n .. '' end -- `string` does not exist while loading
local function text(n) return SMALL[n] or string.format('%.0f', n) end

-- Into the log; returns where it stands there.
local function record(id, n, generation, type_, data)
  return call('XADD', LOG, '*', 't', id, 'e',
    text(n) .. SEP .. text(generation) .. SEP .. type_ .. SEP .. stamp .. SEP .. (data or ''))
end

-- Into `flat`: the fields of a task's next events, `n` counting on from `have`.
local function write_events(flat, id, have, generation, notes)
  local at = #flat
  for turn, note in ipairs(notes) do
    local n = have + turn
    flat[at + 1], flat[at + 2] = 'e' .. text(n), record(id, n, generation, note[1], note[2])
    at = at + 2
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

-- A payload or result as its field holds it: a long one has a key of its own, which is written.
local function put_long(key, name, value)
  if #value <= SHORT then return value end
  call('SET', key .. LONG[name], value)
  return ''
end

-- Into `flat`: names and values as HSET takes them.
local function flatten(flat, key, fields)
  local at = #flat
  for name, value in pairs(fields) do
    if value and name ~= 'id' then
      if value == true then value = 1
      elseif LONG[name] then value = put_long(key, name, value) end
      flat[at + 1], flat[at + 2] = name, value
      at = at + 2
    end
  end
end

-- `had` is what they were, from `from` on: false for a field that is not there.
local function unset_fields(key, names, had, from)
  local there = {}
  for at, name in ipairs(names) do
    if had[from + at - 1] then
      there[#there + 1] = name
      if LONG[name] then call('DEL', key .. LONG[name]) end
    end
  end
  if #there > 0 then call('HDEL', key, unpack(there)) end
end

local function long_field(key, name, inline)
  if inline == '' then return call('GET', key .. LONG[name]) or nil end
  return inline or nil
end

local function number(value) return value and tonumber(value) or nil end

local function least(a, b, c, d)
  local nearest = a or FOREVER
  if b and b < nearest then nearest = b end
  if c and c < nearest then nearest = c end
  if d and d < nearest then nearest = d end
  return nearest
end

local function letters_of(key)
  local flat, letters = call('LRANGE', key .. ':mail', 0, -1), {}
  for at = 1, #flat, 2 do letters[#letters + 1] = { flat[at], flat[at + 1] } end
  return letters
end

local CLAIM_FIELDS = { 'rev', 'type', 'profile', 'payload', 'created_at', 'expires_at', 'attempt_ms',
  'overrides', 'parent', 'key', 'events', 'mail' }
-- A task without a rev has none of these (see `admit`), and most that are claimed have no rev.
local MOVED_FIELDS = { 'fence', 'generation', 'attempt', 'failures', 'retries', 'lost', 'journal',
  'lease_until', 'attempt_by', 'bulk' }
local NONE = {}

-- One task into one worker's hands, by its CLAIM_FIELDS and MOVED_FIELDS. Returns what is told of every
-- task, with what most have at its default in an eleventh place; and what its hash is to keep of it.
local function hand_over(id, h, m, ask, queue, lane, now)
  local key = key_of(id)
  local fence, rev = tonumber(m[1] or 0) + 1, tonumber(h[1] or 0) + 1
  local generation, attempt = tonumber(m[2] or 1), tonumber(m[3] or 0) + 1
  local expires_at, attempt_ms, n = number(h[6]), number(h[7]), tonumber(h[11] or 0) + 1
  local until_ = ask.lease_ms and now + ask.lease_ms
  local attempt_by = until_ and attempt_ms and now + attempt_ms or nil -- only offered: no clock yet
  local due_at = least(until_, attempt_by, expires_at)
  ask.said = ask.said or '{"worker":' .. cjson.encode(ask.worker) .. ',"attempt":'
  local entry = record(id, n, generation, 'task.claimed', ask.said .. text(attempt) .. '}')
  local flat = { 'state', 'running', 'fence', fence, 'rev', rev, 'attempt', attempt,
    'worker', ask.worker, 'started_at', stamp, 'due_at', due_at, 'events', n, 'e' .. text(n), entry }
  if until_ then flat[19], flat[20] = 'lease_until', until_
  else
    if m[8] then call('HDEL', key, 'lease_until') end
    count(queue, lane, 'offered', 1)
  end
  if attempt_by then flat[21], flat[22] = 'attempt_by', attempt_by
  elseif m[9] then call('HDEL', key, 'attempt_by') end
  set_lease(id, due_at)
  tell_of(id)
  local row = { id, ask.worker, fence, rev, h[2], queue, h[3], h[4], attempt, tonumber(h[5]) }
  if m ~= NONE or lane ~= 'primary' or expires_at or attempt_ms or h[8] or h[9] or h[10] or h[12] then
    local letters = tonumber(h[12] or 0) > 0 and letters_of(key) or NONE
    row[11] = { generation, tonumber(m[4] or 0), tonumber(m[5] or 0), tonumber(m[6] or 0), lane,
      expires_at or NIL, attempt_by or NIL, attempt_ms or NIL, h[8] or NIL, h[9] or NIL,
      h[10] or NIL, m[7] or NIL, m[10] or NIL, letters }
  end
  return row, flat
end

-- A long payload is owed: `pay` reads those of all at once.
local function claim_one(id, ask, queue, lane, now, owed)
  local key = key_of(id)
  local h = call('HMGET', key, unpack(CLAIM_FIELDS))
  local m = h[1] and call('HMGET', key, unpack(MOVED_FIELDS)) or NONE
  local row, flat = hand_over(id, h, m, ask, queue, lane, now)
  call('HSET', key, unpack(flat))
  set_alarm(id, nil) -- a queued task has one if it may not wait for ever
  if h[4] == '' then
    owed[#owed + 1], owed[#owed + 2] = row, key .. ':payload'
  end
  return row
end

local function pay(owed)
  for at = 1, #owed, MOST do
    local keys = {}
    for of = at, math.min(at + MOST - 1, #owed), 2 do keys[#keys + 1] = owed[of + 1] end
    for turn, payload in ipairs(call('MGET', unpack(keys))) do
      owed[at + 2 * turn - 2][8] = payload
    end
  end
end

local function claim_for(ask, now, claimed, owed)
  local found, dry = 0, {} -- a lane that gave too little is asked for again in vain
  for _, want in ipairs(ask.wants) do
    local limit = math.min(want.limit, ask.limit - found)
    if limit <= 0 then break end
    local list = lane_key(want.queue, want.priority, want.lane)
    local ids = not dry[list] and call('LPOP', list, limit) or NONE
    dry[list] = #ids < limit
    for _, id in ipairs(ids) do
      claimed[#claimed + 1] = claim_one(id, ask, want.queue, want.lane, now, owed)
    end
    found = found + #ids
    count(want.queue, want.lane, 'queued', -#ids)
    count(want.queue, want.lane, 'running', #ids)
  end
  return found
end

-- A free hand for a new task of this queue, if there is one.
local function free_hand(asks, queue)
  for _, ask in ipairs(asks) do
    if ask.left > 0 and ask.queues[queue] then return ask end
  end
end

-- The same on another server that listens. It is free no more, whoever it is.
local function far_hand(queue, now)
  if not (news and hands) then return end
  hands[queue] = hands[queue] or { call('HGETALL', idle_at(queue)), 1 }
  local known, at = unpack(hands[queue])
  while known[at] do
    local server, spare = known[at], known[at + 1]
    at = at + 2
    hands[queue][2] = at
    if server ~= news.from then
      call('HDEL', idle_at(queue), server)
      local hand = cmsgpack.unpack(spare)
      if now - hand.at < KNOWN_MS and listeners(bell_of(server)) > 0 then
        hand.server, hand.left = server, 1
        return hand
      end
    end
  end
end

local function enqueue(id, queue, priority, lane, place, front)
  local list = lane_key(queue, priority, lane)
  if front then push_front(list, id, place) else later('RPUSH', list, id) end
end

-- Most submissions of a call are alike but for id, payload and idempotency key. What they share is told
-- once, a kind; a submission is { id, which kind, payload, key }.
local function prepare_births(kinds, many)
  for _, kind in ipairs(kinds) do
    local task = kind.task
    task.payload = nil
    task.state = task.state or 'queued' -- a default too: redis-cli should show it
    kind.lane, kind.priority = task.lane or 'primary', task.priority or 1
    kind.moved = NONE
    for at, name in ipairs(MOVED_FIELDS) do
      if task[name] then
        if kind.moved == NONE then kind.moved = {} end
        kind.moved[at] = task[name]
        task.rev = task.rev or 0 -- so that a claim looks for it
      end
    end
    kind.flat = {}
    flatten(kind.flat, nil, task)
    for at, value in ipairs(many > FEW and kind.flat or NONE) do
      if type(value) == 'number' then kind.flat[at] = text(value) end -- once, and not for each task
    end
  end
  return kinds
end

-- A new task into a hand, here or on another server: into `flat` goes what its hash keeps of that.
local function bear_into(hand, flat, id, payload, kind, now, claimed)
  local task = kind.task
  local fields = { task.rev, task.type, task.profile, payload, task.created_at, task.expires_at,
    task.attempt_ms, task.overrides, task.parent, task.key, #kind.events }
  local row, kept = hand_over(id, fields, kind.moved, hand, task.queue, kind.lane, now)
  local many = #flat
  for at, part in ipairs(kept) do flat[many + at] = part end
  hand.left = hand.left - 1
  count(task.queue, kind.lane, 'running', 1)
  if hand.server then given[#given + 1] = { hand, task.queue, row }
  else claimed[#claimed + 1] = row end
end

-- A new task where its state says.
local function bear_onto(id, kind, place)
  local task, state = kind.task, kind.task.state
  count(task.queue, kind.lane, state, 1)
  if state == 'running' then
    set_lease(id, task.due_at or FOREVER)
    if not task.lease_until then count(task.queue, kind.lane, 'offered', 1) end
  elseif task.due_at then set_alarm(id, task.due_at) end
  if state == 'queued' then
    enqueue(id, task.queue, kind.priority, kind.lane, place, false)
    tell_ready(task.queue)
  else
    if state == 'scheduled' then call('ZADD', P .. 'tasks:scheduled', task.run_at / 1000, id) end
    tell_of(id)
  end
end

-- One submission; returns its receipt: 'fresh', 'running', 'full', or why not and whose key it is.
local function admit(submission, kinds, asks, now, claimed)
  local id, kind, payload, key = submission[1], kinds[submission[2]], submission[3], submission[4]
  local task, key_name = kind.task, key and P .. 'onward:key:' .. key.scope .. '|' .. key.key
  if key then
    local known = call('HMGET', key_name, 'body', 'task')
    if known[2] then return { known[1] == key.body and 'known' or 'reused', known[2] } end
  end
  local waiting, hand = depth(task.queue), nil
  if task.state == 'queued' and waiting == 0 then
    hand = free_hand(asks, task.queue)
    if not (hand or kind.near or #payload > GIVING) then hand = far_hand(task.queue, now) end
  end
  if not hand and kind.cap and waiting >= kind.cap then return 'full' end
  local place, name = next_place(), key_of(id)
  local flat = { 'place', place, 'payload', put_long(name, 'payload', payload), unpack(kind.flat) }
  write_events(flat, id, 0, task.generation or 1, kind.events)
  if key then
    call('HSET', key_name, 'body', key.body, 'task', id)
    flat[#flat + 1], flat[#flat + 2] = 'skey', key_name
  end
  if hand then bear_into(hand, flat, id, payload, kind, now, claimed)
  else bear_onto(id, kind, place) end
  call('HSET', name, unpack(flat))
  later('ZADD', P .. 'onward:index', place, id)
  if task.session then
    call('ZADD', P .. 'onward:session:' .. task.session, place, id)
    later('ZADD', P .. 'onward:sessions', place, task.session)
  end
  return hand and 'running' or 'fresh'
end

-- Whoever stood in a queue before goes first; hands that are left are for new work.
local function fill(asks, now, claimed, owed)
  for _, ask in ipairs(asks) do
    ask.left, ask.queues = ask.limit, {}
    for _, want in ipairs(ask.wants) do ask.queues[want.queue] = true end
    ask.left = ask.left - claim_for(ask, now, claimed, owed)
  end
end

local function insert(keys, args)
  local now, request = begin_telling(keys, args)
  local submissions, asks, kinds = request[2], request[3], prepare_births(request[4], #request[2])
  local claimed, owed, receipts = {}, {}, {}
  fill(asks, now, claimed, owed)
  take_places(#submissions)
  for at, submission in ipairs(submissions) do
    receipts[at] = admit(submission, kinds, asks, now, claimed)
  end
  pay(owed)
  return finish({ receipts, claimed })
end

-- These hands are full, whatever was said of them.
local function take_down(ask)
  if not (news and hands) then return end
  for _, want in ipairs(ask.wants) do
    if board then board.free[want.queue] = nil end
    if not hands[want.queue] then
      call('HDEL', idle_at(want.queue), news.from)
      hands[want.queue] = NONE
    end
  end
end

local function claim(keys, args)
  local now, request = begin_telling(keys, args)
  local claimed, owed = {}, {}
  for _, ask in ipairs(request[2]) do
    if claim_for(ask, now, claimed, owed) == ask.limit then take_down(ask) end
  end
  pay(owed)
  return finish(claimed)
end
