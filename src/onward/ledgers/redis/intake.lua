-- How tasks come in. Comes after turns.lua.

-- An ask with a free slot for a new task of this queue, if there is one.
local function free_slot(asks, queue)
  for _, ask in ipairs(asks) do
    if ask.left > 0 and ask.queues[queue] then return ask end
  end
end

-- Most submissions of a call are alike but for id, payload and idempotency key. What they share is sent
-- once, as a template; a submission is { id, which template, payload, key, partition }. Of its hash, too, only what
-- differs is filled in for each: a table of its own, which grows, would cost as much as writing it.
local function prepare_templates(templates, many)
  for _, template in ipairs(templates) do
    local task = template.task
    task.payload = nil
    task.state = task.state or 'queued' -- a default too: redis-cli should show it
    template.lane, template.priority = task.lane or 'primary', task.priority or 1
    template.moved = NONE
    for at, name in ipairs(MOVED_FIELDS) do
      if task[name] and not SINCE_BIRTH[name] then
        if template.moved == NONE then template.moved = {} end
        template.moved[at] = task[name]
        task.rev = task.rev or 0 -- so that a claim looks for it
      end
    end
    for _, name in ipairs(RARE) do
      if task[name] or template.parted then task.generation = task.generation or 1 end -- so that a move looks
    end
    if template.parted then task.rev = task.rev or 0 end
    template.name = lane_name(task.queue, template.priority, template.lane)
    template.list = lane_key(task.queue, template.priority, template.lane)
    template.tags = task.tags and cjson.decode(task.tags)
    template.flat = { 'place', '', 'payload', '' }
    template.many = flatten(template.flat, 4, task)
    for at, value in ipairs(many > FEW and template.flat or NONE) do
      if type(value) == 'number' then template.flat[at] = text(value) end -- once, and not for each task
    end
  end
  return templates
end

-- A new task into a free slot: into `flat`, behind its `many` values, goes what its hash keeps of that.
-- Returns how many values it has now.
local function insert_running(slot, flat, many, id, payload, template, now, claimed)
  local task = template.task
  local fields = { task.rev, task.type, task.profile, payload, task.created_at, task.expires_at,
    task.attempt_ms, task.overrides, task.parent, task.key, #template.events, [14] = task.owner }
  local row, due_at, n, attempt_by = decide_claim(id, fields, template.moved, NONE, slot, task.queue,
    template.lane, now)
  local kept, more = record_claim(row, due_at, n, attempt_by, slot, task.queue, template.lane, now)
  for at = 1, more do flat[many + at] = kept[at] end
  slot.left = slot.left - 1
  if task.batch then count_batch(task.batch, nil, 'running') end
  count(task.queue, template.lane, 'running', 1)
  claimed[#claimed + 1] = row
  return many + more
end

-- A new task where its state says.
local function insert_waiting(id, template, partition)
  local task, state = template.task, template.task.state
  count(task.queue, template.lane, state, 1)
  if task.batch then count_batch(task.batch, nil, state) end
  if state == 'running' then
    set_lease(id, task.due_at or FOREVER)
    occupy(task.queue, task.type, partition, 1)
    if not task.lease_until then count(task.queue, template.lane, 'offered', 1) end
  elseif task.due_at then set_alarm(id, task.due_at) end
  if state == 'queued' then
    later('RPUSH', partition and template.list .. SEP .. partition or template.list, id)
    if partition then enter(template.name, partition) end
    publish_queue(task.queue)
  else
    if state == 'scheduled' then later('ZADD', P .. 'onward:scheduled', task.run_at, id)
    elseif task.waiting_for == 'approval' then later('ZADD', P .. 'onward:approvals', task.created_at, id) end
    publish_task(id)
  end
end

local function key_name(key) return P .. 'onward:key:' .. key.scope .. '|' .. key.key end
local KEPT_MS = 24 * 3600 * 1000 -- of a key that another task's id is the answer to

-- The newest of the live tasks with this unique key that are in one of these states. Those that run
-- have a list of their own: behind one that runs any number may be queued, and nobody waits for them.
local function find_holder(key, states)
  local counts = {}
  for _, state in ipairs(states) do counts[state] = true end
  local from = #states == 1 and counts.running and runners_of(key) or holders_of(key)
  local at, ids = 0, NONE
  repeat
    ids = call('ZREVRANGE', from, at, at + FEW - 1)
    for _, id in ipairs(ids) do
      if counts[call('HGET', key_of(id), 'state')] then return id end
    end
    at = at + FEW
  until #ids < FEW
end

-- The task with this debounce key that waits for its time, and was never claimed.
local function find_waiting(key)
  local id = call('GET', debounce_key(key))
  local h = id and call('HMGET', key_of(id), 'state', 'fence')
  return h and h[1] == 'scheduled' and tonumber(h[2] or 0) == 0 and id or nil
end

-- Another task that this one may not be beside: its receipt. Nil: there is none.
local function find_rival(task, unique, key)
  local holder = unique and task.unique_key and find_holder(task.unique_key, unique.states)
  if holder then
    if key and unique.returns then -- who asks again gets the same answer
      put('HSET', key_name(key), 'body', key.body, 'task', holder)
      put('ZADD', P .. 'onward:forget', tonumber(stamp) + KEPT_MS, key_name(key))
    end
    return { 'held', holder }
  end
  local waiting = task.debounce_key and task.state == 'scheduled' and find_waiting(task.debounce_key)
  return waiting and { 'waits', waiting } or nil
end

-- One submission; returns its receipt: 'fresh', 'running', 'full', or why not and whose key it is.
local function admit(submission, templates, asks, now, claimed)
  local id, template, payload, key = submission[1], templates[submission[2]], submission[3], submission[4]
  local partition = submission[5]
  local task = template.task
  if key then
    local known = call('HMGET', key_name(key), 'body', 'task')
    if known[2] then return { known[1] == key.body and 'known' or 'reused', known[2] } end
  end
  local rival = (template.unique or task.debounce_key) and find_rival(task, template.unique, key)
  if rival then return rival end
  local waiting, slot = depth(task.queue), nil
  if task.state == 'queued' and waiting == 0 and not partition then slot = free_slot(asks, task.queue) end
  if not slot and template.cap and waiting >= template.cap then return 'full' end
  local place, name = text(next_place()), key_of(id)
  -- Everything is read. From here on nothing raises.
  local flat = template.flat
  flat[2], flat[4] = place, put_long(id, 'payload', payload)
  local many = write_events(flat, template.many, id, 0, task.generation or 1, template.events)
  if key then
    put('HSET', key_name(key), 'body', key.body, 'task', id)
    flat[many + 1], flat[many + 2] = 'skey', key_name(key)
    many = many + 2
  end
  if partition then
    flat[many + 1], flat[many + 2] = 'partition', partition
    many = many + 2
  end
  if slot then many = insert_running(slot, flat, many, id, payload, template, now, claimed)
  else insert_waiting(id, template, partition) end
  put_all('HSET', name, flat, many)
  if task.unique_key then
    put('ZADD', holders_of(task.unique_key), place, id)
    if slot or task.state == 'running' then run_unique(task.unique_key, id, place) end
  end
  if task.debounce_key and task.state == 'scheduled' then put('SET', debounce_key(task.debounce_key), id) end
  later('ZADD', P .. 'onward:index', place, id)
  if task.session then
    put('ZADD', P .. 'onward:session:' .. task.session, place, id)
    later('ZADD', P .. 'onward:sessions', place, task.session)
  end
  if task.batch then later('ZADD', P .. 'onward:in-batch:' .. task.batch, place, id) end
  for _, tag in ipairs(template.tags or NONE) do later('ZADD', P .. 'onward:tag:' .. tag, place, id) end
  return slot and 'running' or 'fresh'
end

-- Tasks that are queued already go first; slots that are left are for new ones.
local function fill(asks, now, claimed)
  for _, ask in ipairs(asks) do
    ask.left, ask.queues = ask.limit, {}
    -- What has bounds is claimed: they are not checked for a new task.
    for _, want in ipairs(ask.wants) do ask.queues[want.queue] = not want.bounds end
    ask.left = ask.left - (attempt('claim', ask.worker, claim_for, ask, now, claimed) or ask.left)
  end
end

local function insert(keys, args)
  local now, request = begin_publishing(keys, args)
  local submissions, asks, templates = request[2], request[3], prepare_templates(request[4], #request[2])
  local claimed, receipts = {}, {}
  take_places(#submissions)
  prepare_limits(request[5])
  fill(asks, now, claimed)
  each('insert', submissions, function(submission, at)
    receipts[at] = admit(submission, templates, asks, now, claimed)
  end, function(at)
    receipts[at] = 'refused'
    return submissions[at][1]
  end)
  return finish({ receipts, claimed })
end

local function claim(keys, args)
  local now, request = begin_publishing(keys, args)
  local claimed = {}
  prepare_limits(request[3])
  for _, ask in ipairs(request[2]) do
    attempt('claim', ask.worker, claim_for, ask, now, claimed)
  end
  return finish(claimed)
end
