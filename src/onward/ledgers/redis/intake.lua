-- How tasks come in, and into workers' hands. Comes after ledger.lua.

local CLAIM_FIELDS = { 'rev', 'type', 'profile', 'payload', 'created_at', 'expires_at', 'attempt_ms',
  'overrides', 'parent', 'key', 'events', 'mail', 'state' }
-- A task without a rev has none of these (see `admit`), and most that are claimed have no rev.
local MOVED_FIELDS = { 'fence', 'generation', 'attempt', 'failures', 'retries', 'lost', 'journal',
  'lease_until', 'attempt_by', 'bulk' }
local NONE = {}

-- One task for one worker's hands, by its CLAIM_FIELDS and MOVED_FIELDS; nothing is written. Returns
-- what is told of every task, with what most have at its default in an eleventh place; what its hash
-- is to keep of it; and the fields that it must lose.
local function hand_over(id, h, m, letters, ask, queue, lane, now)
  local fence, rev = tonumber(m[1] or 0) + 1, tonumber(h[1] or 0) + 1
  local generation, attempt_ = tonumber(m[2] or 1), tonumber(m[3] or 0) + 1
  local expires_at, attempt_ms, n = number(h[6]), number(h[7]), tonumber(h[11] or 0) + 1
  local until_ = ask.lease_ms and now + ask.lease_ms
  local attempt_by = until_ and attempt_ms and now + attempt_ms or nil -- only offered: no clock yet
  local due_at = least(until_, attempt_by, expires_at)
  ask.said = ask.said or '{"worker":' .. cjson.encode(ask.worker) .. ',"attempt":'
  local flat = { 'state', 'running', 'fence', fence, 'rev', rev, 'attempt', attempt_,
    'worker', ask.worker, 'started_at', stamp, 'due_at', due_at, 'events', n, 'e' .. text(n), '' }
  local unset = NONE
  if until_ then flat[19], flat[20] = 'lease_until', until_
  elseif m[8] then unset = { 'lease_until' } end
  if attempt_by then flat[#flat + 1], flat[#flat + 2] = 'attempt_by', attempt_by
  elseif m[9] then unset = { 'attempt_by', unset[1] } end
  local row = { id, ask.worker, fence, rev, h[2], queue, h[3], h[4], attempt_, tonumber(h[5]) }
  if m ~= NONE or lane ~= 'primary' or expires_at or attempt_ms or h[8] or h[9] or h[10] or h[12] then
    row[11] = { generation, tonumber(m[4] or 0), tonumber(m[5] or 0), tonumber(m[6] or 0), lane,
      expires_at or NIL, attempt_by or NIL, attempt_ms or NIL, h[8] or NIL, h[9] or NIL,
      h[10] or NIL, m[7] or NIL, m[10] or NIL, letters }
  end
  return row, flat, unset
end

-- It is in these hands: the event, whose place in the log `flat` still lacks, and what is known of it
-- elsewhere than in its hash.
local function record_claim(row, flat, ask, queue, lane)
  local id, generation = row[1], row[11] and row[11][1] or 1
  flat[18] = record(id, flat[16], generation, 'task.claimed', ask.said .. text(row[9]) .. '}')
  if not ask.lease_ms then count(queue, lane, 'offered', 1) end
  set_lease(id, flat[14])
  tell_of(id)
end

-- A task at the head of its queue, read and decided; false: it stands there by mistake, and is not
-- queued. Raises if it cannot be read.
local function read_claim(id, ask, queue, lane, now)
  local key = key_of(id)
  local h = call('HMGET', key, unpack(CLAIM_FIELDS))
  if h[13] and h[13] ~= 'queued' then return false end
  if not (h[2] and h[3] and h[4] and tonumber(h[5])) then error('no task, or not all of it') end
  local m = h[1] and call('HMGET', key, unpack(MOVED_FIELDS)) or NONE
  local letters = tonumber(h[12] or 0) > 0 and letters_of(id) or NONE
  return hand_over(id, h, m, letters, ask, queue, lane, now)
end

-- Long payloads, those of all at once. Of one that is not there the task cannot be read.
local function read_payloads(found, many)
  local rows, keys = {}, {}
  for at = 1, many do
    local one = found[at]
    if one and one[8] == '' then
      rows[#rows + 1], keys[#keys + 1] = at, long_of('payload', one[1])
    end
  end
  for from = 1, #keys, MOST do
    local payloads = call('MGET', unpack(keys, from, math.min(from + MOST - 1, #keys)))
    for turn, payload in ipairs(payloads) do
      local at = rows[from + turn - 1]
      if payload then found[at][8] = payload else found[at] = nil end
    end
  end
end

-- A row that cannot be read is nobody's work, and must not keep the others from theirs.
local function put_aside(id) put('ZADD', P .. 'onward:aside', stamp, id) end

-- From the head of one list, all of them read before the first is taken. Returns how many were had,
-- and whether it may have more.
local function claim_from(list, limit, ask, want, now, claimed)
  local ids = call('LRANGE', list, 0, limit - 1)
  if #ids == 0 then return 0, false end
  local found, flats, unsets, met, queued_, taken = {}, {}, {}, {}, 0, 0
  each('claim', ids, function(id, at)
    local twice = met[id]
    met[id] = true -- before it is read, which may raise: it is counted, and put aside, once
    if twice then found[at] = false
    else found[at], flats[at], unsets[at] = read_claim(id, ask, want.queue, want.lane, now) end
  end, function(at) return ids[at] end)
  read_payloads(found, #ids)
  local left = put('LPOP', list, #ids)
  for at, id in ipairs(ids) do
    local row, flat = found[at], flats[at]
    if row then
      record_claim(row, flat, ask, want.queue, want.lane)
      put_all('HSET', key_of(id), flat)
      if unsets[at] ~= NONE then put_all('HDEL', key_of(id), unsets[at]) end
      set_alarm(id, nil) -- a queued task has one if it may not wait for ever
      taken = taken + 1
      claimed[#claimed + 1] = row
    elseif row == nil then put_aside(id) end
    if row ~= false then queued_ = queued_ + 1 end
  end
  count(want.queue, want.lane, 'queued', -queued_)
  count(want.queue, want.lane, 'running', taken)
  return taken, left and #ids == limit
end

local function claim_for(ask, now, claimed)
  local found, dry = 0, {} -- a lane that gave too little is asked for again in vain
  for _, want in ipairs(ask.wants) do
    local limit = math.min(want.limit, ask.limit - found)
    if limit <= 0 then break end
    local list = lane_key(want.queue, want.priority, want.lane)
    while limit > 0 and not dry[list] do
      local taken, more = claim_from(list, limit, ask, want, now, claimed)
      dry[list] = not more
      found, limit = found + taken, limit - taken
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
      put('HDEL', idle_at(queue), server)
      local hand = cmsgpack.unpack(spare)
      if now - hand.at < KNOWN_MS and listeners(bell_of(server)) > 0 then
        hand.server, hand.left = server, 1
        return hand
      end
    end
  end
end

local function enqueue(id, queue, priority, lane)
  later('RPUSH', lane_key(queue, priority, lane), id)
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
  local row, kept = hand_over(id, fields, kind.moved, NONE, hand, task.queue, kind.lane, now)
  record_claim(row, kept, hand, task.queue, kind.lane)
  local many = #flat
  for at, part in ipairs(kept) do flat[many + at] = part end
  hand.left = hand.left - 1
  count(task.queue, kind.lane, 'running', 1)
  if hand.server then given[#given + 1] = { hand, task.queue, row }
  else claimed[#claimed + 1] = row end
end

-- A new task where its state says.
local function bear_onto(id, kind)
  local task, state = kind.task, kind.task.state
  count(task.queue, kind.lane, state, 1)
  if state == 'running' then
    set_lease(id, task.due_at or FOREVER)
    if not task.lease_until then count(task.queue, kind.lane, 'offered', 1) end
  elseif task.due_at then set_alarm(id, task.due_at) end
  if state == 'queued' then
    enqueue(id, task.queue, kind.priority, kind.lane)
    tell_ready(task.queue)
  else
    if state == 'scheduled' then later('ZADD', P .. 'onward:scheduled', task.run_at, id) end
    tell_of(id)
  end
end

local function key_name(key) return P .. 'onward:key:' .. key.scope .. '|' .. key.key end

-- One submission; returns its receipt: 'fresh', 'running', 'full', or why not and whose key it is.
local function admit(submission, kinds, asks, now, claimed)
  local id, kind, payload, key = submission[1], kinds[submission[2]], submission[3], submission[4]
  local task = kind.task
  if key then
    local known = call('HMGET', key_name(key), 'body', 'task')
    if known[2] then return { known[1] == key.body and 'known' or 'reused', known[2] } end
  end
  local waiting, hand = depth(task.queue), nil
  if task.state == 'queued' and waiting == 0 then
    hand = free_hand(asks, task.queue)
    if not (hand or kind.near or #payload > GIVING) then
      hand = attempt('hand for', task.queue, far_hand, task.queue, now)
    end
  end
  if not hand and kind.cap and waiting >= kind.cap then return 'full' end
  local place, name = next_place(), key_of(id)
  -- Everything is read. From here on nothing raises.
  local flat = { 'place', place, 'payload', put_long(id, 'payload', payload), unpack(kind.flat) }
  write_events(flat, id, 0, task.generation or 1, kind.events)
  if key then
    put('HSET', key_name(key), 'body', key.body, 'task', id)
    flat[#flat + 1], flat[#flat + 2] = 'skey', key_name(key)
  end
  if hand then bear_into(hand, flat, id, payload, kind, now, claimed)
  else bear_onto(id, kind) end
  put_all('HSET', name, flat)
  later('ZADD', P .. 'onward:index', place, id)
  if task.session then
    put('ZADD', P .. 'onward:session:' .. task.session, place, id)
    later('ZADD', P .. 'onward:sessions', place, task.session)
  end
  return hand and 'running' or 'fresh'
end

-- Whoever stood in a queue before goes first; hands that are left are for new work.
local function fill(asks, now, claimed)
  for _, ask in ipairs(asks) do
    ask.left, ask.queues = ask.limit, {}
    for _, want in ipairs(ask.wants) do ask.queues[want.queue] = true end
    ask.left = ask.left - (attempt('claim', ask.worker, claim_for, ask, now, claimed) or ask.left)
  end
end

local function insert(keys, args)
  local now, request = begin_telling(keys, args)
  local submissions, asks, kinds = request[2], request[3], prepare_births(request[4], #request[2])
  local claimed, receipts = {}, {}
  take_places(#submissions)
  fill(asks, now, claimed)
  each('insert', submissions, function(submission, at)
    receipts[at] = admit(submission, kinds, asks, now, claimed)
  end, function(at)
    receipts[at] = 'refused'
    return submissions[at][1]
  end)
  return finish({ receipts, claimed })
end

-- These hands are full, whatever was said of them.
local function take_down(ask)
  if not (news and hands) then return end
  for _, want in ipairs(ask.wants) do
    if board then board.free[want.queue] = nil end
    if not hands[want.queue] then
      put('HDEL', idle_at(want.queue), news.from)
      hands[want.queue] = NONE
    end
  end
end

local function claim(keys, args)
  local now, request = begin_telling(keys, args)
  local claimed = {}
  for _, ask in ipairs(request[2]) do
    if attempt('claim', ask.worker, claim_for, ask, now, claimed) == ask.limit then take_down(ask) end
  end
  return finish(claimed)
end
