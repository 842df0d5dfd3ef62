/*
 * siphash.c
 *		SipHash-2-4, a keyed hash for short inputs.
 *
 * Without the key, its results look like random numbers, even to somebody who
 * sees the results of many inputs of his own.  So they show neither the key
 * nor the inputs.  Hash functions for tables do not have this property.
 *
 * J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF",
 * INDOCRYPT 2012, https://eprint.iacr.org/2012/351
 */
#include "postgres.h"

#include "port/pg_bswap.h"

#include "base/siphash.h"

#define WORD sizeof(uint64)

static inline uint64
rotate_left(uint64 word, int bits)
{
	return (word << bits) | (word >> (64 - bits));
}

/* SipHash reads words with the lowest byte first. */
static inline uint64
read_word(const unsigned char *bytes)
{
	uint64		word;

	memcpy(&word, bytes, WORD);
#ifdef WORDS_BIGENDIAN
	word = pg_bswap64(word);
#endif
	return word;
}

typedef struct State
{
	uint64		v0;
	uint64		v1;
	uint64		v2;
	uint64		v3;
} State;

static inline void
sip_round(State *state)
{
	state->v0 += state->v1;
	state->v2 += state->v3;
	state->v1 = rotate_left(state->v1, 13) ^ state->v0;
	state->v3 = rotate_left(state->v3, 16) ^ state->v2;
	state->v0 = rotate_left(state->v0, 32);
	state->v2 += state->v1;
	state->v0 += state->v3;
	state->v1 = rotate_left(state->v1, 17) ^ state->v2;
	state->v3 = rotate_left(state->v3, 21) ^ state->v0;
	state->v2 = rotate_left(state->v2, 32);
}

static inline void
add_word(State *state, uint64 word)
{
	state->v3 ^= word;
	sip_round(state);
	sip_round(state);
	state->v0 ^= word;
}

SipHashKey
siphash_key(const void *bytes)
{
	return (SipHashKey)
	{
		.words = {read_word(bytes), read_word((const unsigned char *) bytes + WORD)}
	};
}

uint64
siphash(const SipHashKey *key, const void *bytes, Size length)
{
	const unsigned char *next = bytes;
	const unsigned char *end = next + length;
	uint64		last = (uint64) length << 56;
	State		state = {
		UINT64CONST(0x736f6d6570736575) ^ key->words[0],
		UINT64CONST(0x646f72616e646f6d) ^ key->words[1],
		UINT64CONST(0x6c7967656e657261) ^ key->words[0],
		UINT64CONST(0x7465646279746573) ^ key->words[1]
	};

	for (; end - next >= WORD; next += WORD)
		add_word(&state, read_word(next));
	for (int i = 0; next + i < end; i++)
		last |= (uint64) next[i] << (8 * i);
	add_word(&state, last);
	state.v2 ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&state);
	return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}
