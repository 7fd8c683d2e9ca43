-- What handlers did to the outside world. Comes after moves.lua.
--
-- A field of onward:effect:{scope}|{key} is one effect: the fence and the task that began it, and its
-- value, which is empty until it is done. A task without a key has the scope '', which no submission
-- has: no key can pass for a task's id. Notes that were made before keys had scopes lie in
-- onward:effects:{key or id}; they are used where they lie, and no new ones are made there.

-- The hash, the field, and what is noted there, if anything.
local function note_of(request)
  local id, key, profile, name = request[2], request[3], request[4], request[5]
  local owner = '|' .. id
  if key then
    -- A stream entry that repeats a key after a worker took it becomes a task without a hold on that
    -- key. Its profile has the name of the scope.
    local skey = call('HGET', key_of(id), 'skey')
    owner = skey and scoped(skey) or profile .. '|' .. key
  end
  local at = P .. 'onward:effect:' .. owner
  local found = call('HGET', at, name)
  if not found then
    local earlier = P .. 'onward:effects:' .. (key or id)
    found = call('HGET', earlier, name)
    if not found then return at, name end
    at = earlier
  end
  local ends = string.find(found, SEP, 1, true)
  local fence, task = string.match(string.sub(found, 1, ends - 1), '^(%d+):?(.*)$')
  if task == '' then task = id end -- made before notes had tasks
  return at, name, { fence = tonumber(fence), task = task, value = string.sub(found, ends + 1) }
end

local function noted(fence, task, value)
  return string.format('%d', fence) .. ':' .. task .. SEP .. value
end

local function begin_effect(keys, args)
  local _, request = begin(keys, args)
  local at, name, note = note_of(request)
  if note then return { note.task, note.fence, note.value } end
  call('HSET', at, name, noted(request[6], request[2], ''))
  return false
end

local function finish_effect(keys, args)
  local _, request = begin(keys, args)
  local at, name, note = note_of(request)
  if not note then return 0 end
  if note.value ~= '' then return 1 end -- the first value stays
  if note.fence ~= request[6] then return 0 end
  call('HSET', at, name, noted(note.fence, note.task, request[7]))
  return 1
end

local function undo_effect(keys, args)
  local _, request = begin(keys, args)
  local at, name, note = note_of(request)
  local id, fence = request[2], request[6]
  if not note or note.value ~= '' or note.task ~= id or note.fence ~= fence then return 0 end
  -- Not after the next claim: an attempt that was let to repeat an unknown effect finishes this note.
  if tonumber(call('HGET', key_of(id), 'fence') or 0) ~= fence then return 0 end
  return call('HDEL', at, name)
end

register('begin_effect', begin_effect) -- refused when memory is full; what has happened must be noted:
register('finish_effect', finish_effect, 'allow-oom')
register('undo_effect', undo_effect, 'allow-oom')
