-- Reservations, corrections, renewals and releases, several in one call, in order.
--
-- KEYS[1] names the hash slot's prefix. ARGV[1] is a MessagePack array of commands:
--   {"reserve", id, lease_ms, tokens, {{scope, requests, tokens, streams}, ...}}  (-1: no limit)
--   {"correct", tokens, {{scope, tokens_limit}, ...}}
--   {"release", id, {scope, ...}}
--   {"renew",   id, lease_ms, {scope, ...}}
-- Answers with a MessagePack array, for each reserve {0, limit, left, reset_s} (limit -1: none) or
-- {index of the scope, dimension, wait_ms} with dimensions 1 requests, 2 tokens, 3 streams; wait_ms
-- -1: never. The formulas are those of quota_arithmetic.py; time is the server's.

local UNITS = 60000
local prefix = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function read(key, limit)
    local found = redis.call('HMGET', key, 'owed', 'at')
    if not found[1] then return 0 end
    return math.max(0, tonumber(found[1]) - limit * math.max(0, now - tonumber(found[2])))
end

local function write(key, owed, limit)
    if owed <= 0 then
        redis.call('DEL', key)
    else
        redis.call('HSET', key, 'owed', string.format('%.0f', owed), 'at', string.format('%.0f', now))
        redis.call('PEXPIRE', key, math.ceil(owed / math.max(limit, 1)) + 1000)
    end
end

local function wait_for(owed, cost, limit)
    local excess = owed + (math.min(cost, limit) - limit) * UNITS
    if excess <= 0 then return 0 end
    return math.ceil(excess / limit)
end

local function refuse(index, dimension, limit, wait)
    if limit == 0 then wait = -1 end
    return {index, dimension, wait}
end

local function reserve(command)
    local id, lease_ms, tokens, scopes = command[2], command[3], command[4], command[5]
    local owed_requests, owed_tokens = {}, {}
    for index, scope in ipairs(scopes) do
        local name, requests, per_min, streams = scope[1], scope[2], scope[3], scope[4]
        if requests >= 0 then
            if requests == 0 then return refuse(index, 1, 0, -1) end
            owed_requests[index] = read(prefix .. 'r:' .. name, requests)
            local wait = wait_for(owed_requests[index], 1, requests)
            if wait > 0 then return refuse(index, 1, requests, wait) end
        end
        if per_min >= 0 then
            if per_min == 0 then return refuse(index, 2, 0, -1) end
            owed_tokens[index] = read(prefix .. 't:' .. name, per_min)
            local wait = wait_for(owed_tokens[index], tokens, per_min)
            if wait > 0 then return refuse(index, 2, per_min, wait) end
        end
        if streams >= 0 then
            local key = prefix .. 's:' .. name
            if redis.call('ZCARD', key) >= streams then
                redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
                if redis.call('ZCARD', key) >= streams then return refuse(index, 3, streams, 0) end
            end
        end
    end
    local best = {0, -1, -1, 0}
    for index, scope in ipairs(scopes) do
        local name, requests, per_min, streams = scope[1], scope[2], scope[3], scope[4]
        if requests >= 0 then
            local owed = owed_requests[index] + UNITS
            write(prefix .. 'r:' .. name, owed, requests)
            local left = math.max(0, math.floor((requests * UNITS - owed) / UNITS))
            if best[2] < 0 or left < best[3] then
                best = {0, requests, left, math.ceil(owed / (requests * 1000))}
            end
        end
        if per_min >= 0 then
            write(prefix .. 't:' .. name, owed_tokens[index] + tokens * UNITS, per_min)
        end
        if streams >= 0 then
            local key = prefix .. 's:' .. name
            redis.call('ZADD', key, now + lease_ms, id)
            redis.call('PEXPIRE', key, 2 * lease_ms)
        end
    end
    return best
end

local function correct(command)
    local tokens = command[2]
    for _, scope in ipairs(command[3]) do
        local key = prefix .. 't:' .. scope[1]
        write(key, math.max(0, read(key, scope[2]) + tokens * UNITS), scope[2])
    end
end

local function release(command)
    for _, scope in ipairs(command[3]) do
        redis.call('ZREM', prefix .. 's:' .. scope, command[2])
    end
end

local function renew(command)
    for _, scope in ipairs(command[4]) do
        local key = prefix .. 's:' .. scope
        redis.call('ZADD', key, now + command[3], command[2])
        redis.call('PEXPIRE', key, 2 * command[3])
    end
end

local answers = {}
for _, command in ipairs(cmsgpack.unpack(ARGV[1])) do
    if command[1] == 'reserve' then
        answers[#answers + 1] = reserve(command)
    elseif command[1] == 'correct' then
        correct(command)
    elseif command[1] == 'release' then
        release(command)
    else
        renew(command)
    end
end
return cmsgpack.pack(answers)
