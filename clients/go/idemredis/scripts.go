package idemredis

// Scripts run as a whole. Their keys are the stream, and what belongs to the group:
// the entries that pause, the errors of each entry, the dead letters.

// tidy: each consumer that is gone has left its name. One that lives has its own again when it
// reads. Without the right to it the names stay.
const tidy = `
for _, consumer in ipairs(redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
	if consumer[4] == 0 then redis.pcall('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer[2]) end
end`

// take gives entries of consumers that died, and entries whose pause is over.
// XAUTOCLAIM would take those that still pause.
const take = `
local stream, again, tries = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, idle, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids, from = {}, '-'
repeat
	local page = redis.call('XPENDING', stream, group, 'IDLE', idle, from, '+', 100)
	for _, pending in ipairs(page) do
		if #ids < count and not redis.call('ZSCORE', again, pending[1]) then ids[#ids + 1] = pending[1] end
	end
	if #page > 0 then from = '(' .. page[#page][1] end
until #page < 100 or #ids >= count
for _, id in ipairs(redis.call('ZRANGEBYSCORE', again, '-inf', now, 'LIMIT', 0, count - #ids)) do
	redis.call('ZREM', again, id)
	ids[#ids + 1] = id
end
local taken = {}
for _, id in ipairs(ids) do
	local entry = redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
	if entry then
		local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
		taken[#taken + 1] = {entry[1], entry[2], pending[4], tonumber(redis.call('HGET', tries, id) or 0)}
	else
		redis.call('HDEL', tries, id)
	end
end
return taken`

// pauseEntry leaves an entry pending until its time, with so many deliveries.
const pauseEntry = `
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3], ARGV[2])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[5], 0, ARGV[2], 'RETRYCOUNT', ARGV[6], 'JUSTID')
return 1`

// endEntry acknowledges an entry: of two consumers that have the same one, one does. Redis
// takes nothing back where a script fails, so the dead letter comes first. Lua passes on 8000
// values at most.
const endEntry = `
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then return 0 end
if ARGV[3] == 'bury' then
	local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
	local fields = entry and entry[2] or {'trimmed', '1'}
	if #fields > 4000 then fields = {'x-idempotency-fields', cjson.encode(fields)} end
	redis.call('XADD', KEYS[4], '*', 'x-idempotency-id', ARGV[2], unpack(fields))
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
return 1`
