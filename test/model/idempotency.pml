/*
 * idempotency.pml
 *		The protocol of the extension, for exhaustive checking with spin.
 *
 * What a step models is named in its comment: file and function of src/.  One
 * step is what nobody can get into: a lock that is granted, a look with one
 * snapshot, a row that is written, a commit that becomes visible.  Everything
 * between two steps may be interleaved with anything of the other clients, of
 * the sweep and of the clock.
 *
 * Clients are interchangeable, and no process here has a state of its own, so
 * after each step the clients are put in order: of all states that differ only
 * in who is who, one is kept.  Nothing else is left out.
 *
 * -DCLIENTS=1..3 -DKEYS=1..2		how large
 * -DLEASES=n -DLEASES_1=n			leases that are taken on key 0, and on key 1
 * -DOUTSIDE						leases only, with an effect in another system
 * -DDRAIN=n						n things go wrong, then everything has to end
 * -DNO_LOCK and others				take one guard out, and must fail: see run
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef KEYS
#define KEYS 1
#endif
#ifndef LEASES
#define LEASES 2
#endif
#ifndef LEASES_1
#define LEASES_1 LEASES
#endif

/* What is checked: everything, or with -DONLY_I1 and so on one of them. */
#if !defined(ONLY_I1) && !defined(ONLY_I2) && !defined(ONLY_I3) && !defined(ONLY_I4) && \
	!defined(ONLY_I5) && !defined(ONLY_I6) && !defined(ONLY_OWNER)
#define ONLY_I1
#define ONLY_I2
#define ONLY_I3
#define ONLY_I4
#define ONLY_I5
#define ONLY_I6
#define ONLY_OWNER
#endif

/* With -DDRAIN=n the clients want an end of each key, and n things go wrong. */
#ifdef DRAIN
byte faults = DRAIN;
#define MAY_FAIL	(faults > 0)
#define FAIL		faults--
#define WANTED		(CLIENT.told[k] == 0)
#else
#define MAY_FAIL	true
#define FAIL		skip
#define WANTED		true
#endif

/* -- the store: what is committed ----------------------------------------- */

#define ABSENT		0
#define PENDING		1
#define COMPLETED	2
#define RETRYABLE	3			/* FAILED, to be tried again */
#define FAILED		4			/* for good */

typedef Row {
	byte status;
	byte fence;
	bit due;					/* its lease, or its retry_after, has passed */
	bit expired;				/* its expires_at has passed */
	/* for the checks */
	byte effects;				/* committed in the database, since the key was new */
	byte outside;				/* in another system, that compares fences */
	byte highest;				/* fence which that system has seen */
	bit acknowledged;			/* somebody was told COMPLETED */
	byte sequence;				/* idempotency_fence; one per key loses nothing */
	byte given;					/* the greatest fence that was given out */
};
Row row[KEYS];

/* The sweep: 0, or which row it has read (1 + k) or deleted (1 + KEYS + k). */
byte sweep;
#define SWEEP_READ(k)		(1 + (k))
#define SWEEP_DELETED(k)	(1 + KEYS + (k))

/* -- the clients: an application with its backend ------------------------- */

/* at: where the client is */
#define IDLE		0			/* no transaction, no fence */
#define OPEN		1			/* in a transaction, between two statements */
#define ASKED		2			/* begin: has asked for the lock, not looked yet */
#define QUEUED		3			/* begin with a wait: in the lock's queue */
#define LEASING		4			/* begin with a lease: decided, to be written */
#define FENCED		5			/* no transaction, has a fence */
#define END_QUEUED	6			/* end by fence: in the lock's queue */
#define END_LOCKED	7			/* end by fence: has the lock, not looked yet */
#define END_JUDGED	8			/* end by fence: is current, to be written */
#define HALF		9			/* COMMIT: visible, locks not yet released */

/* own[k]: where its transaction stands with a key (OperationState of transaction.h) */
#define NOTHING		0
#define FRESH		1			/* PENDING in memory; no row was found */
#define EXPECTED		2			/* ... the row that was found is still the newest */
#define STALE		3			/* ... another version came after it */
/* from here on its own version of the row is written and not committed */
#define W_LEASE		4
#define W_EXTENDED	5
#define W_COMPLETED	6			/* transaction-bound */
#define W_FENCED	7			/* completed by fence */
#define W_RETRYABLE	8
#define W_FENCED_RETRYABLE 9
#define W_FAILED	10
#define W_RELEASED	11			/* of a later attempt: PENDING, with its lease over */
#define W_DELETED	12

/* todo: what an owner of a lease has to do outside */
#define ACT			0
#define RECONCILE	1			/* not the first attempt: ask first */
#define DONE		2

/* what a begin decides (begin.c, decide) */
#define NOT_LOOKED	0
#define ACQUIRE_NEW	1			/* no row */
#define ACQUIRE_OLD	2			/* an expired one */
#define NEXT		3			/* the next attempt of the one found */
#define ENDED		4
#define RUNNING		5			/* a lease */
#define CURRENT		6			/* end by fence: PENDING, and the fence is its */
#define LOST		7			/* end by fence: any other, and one that has ended */
#define OVERTAKEN	16			/* flag: another version came since the look */

typedef Client {
	byte at;
	byte key;					/* of the statement, or of the fence */
	byte fence;
	byte todo;
	byte seen;					/* verdict; only with SNAPSHOT_FIRST */
	bit later;					/* its fence is not that of the first attempt */
	bit superseded;				/* for the checks: its fence is not current */
	byte own[KEYS];
	bit lock[KEYS];
	bit told[KEYS];				/* with DRAIN: has seen the end */
};
Client client[CLIENTS];

/* In processes that work for a client "me" or on a key "k". */
#define CLIENT	client[me]
#define ROW		row[k]
#define MINE	CLIENT.own[k]
#define HERE	(CLIENT.key == k)

#if CLIENTS == 1
#define SOME(p)		(p(0))
#define COUNT(p)	(p(0))
#elif CLIENTS == 2
#define SOME(p)		(p(0) || p(1))
#define COUNT(p)	(p(0) + p(1))
#else
#define SOME(p)		(p(0) || p(1) || p(2))
#define COUNT(p)	(p(0) + p(1) + p(2))
#endif

#define HOLDS(d)		(client[d].lock[k])
#define IN_QUEUE(d)		(client[d].key == k && (client[d].at == QUEUED || client[d].at == END_QUEUED))
#define HAS_FENCE(d)	(client[d].fence > 0 && client[d].key == k)
#define OWNS(d)			(client[d].own[k] != NOTHING)

/*
 * advisory_lock.c: a lock that is released goes to somebody who queues for it, so that
 * nobody else finds it free, or can queue before that.
 */
#ifdef NO_LOCK
#define AVAILABLE	true
#define GRANTABLE	true
#define IN_USE		false
#else
#define AVAILABLE	(!SOME(HOLDS) && !SOME(IN_QUEUE))
#define GRANTABLE	(!SOME(HOLDS))
#define IN_USE		(SOME(HOLDS))
#endif

/* Is there another's version of the row that is not committed?  Then a write waits. */
#ifdef LOCKS_FIRST
#define WRITES(d)	((d) != me && client[d].own[k] >= W_LEASE)
#else
#define WRITES(d)	((d) != me && client[d].own[k] >= W_LEASE && client[d].at != HALF)
#endif
#define ROW_FREE	(!SOME(WRITES) && sweep != SWEEP_DELETED(k))

/* -- begin.c: what a record means ----------------------------------------- */

/* is_absent */
#define IS_ABSENT	(ROW.status == ABSENT || ROW.expired)
#define IS_ENDED	(!IS_ABSENT && (ROW.status == COMPLETED || ROW.status == FAILED || \
									(ROW.status == RETRYABLE && !ROW.due)))
#define IS_RUNNING	(!IS_ABSENT && ROW.status == PENDING && !ROW.due)

/* decide */
#define JUDGE \
	(ROW.status == ABSENT -> ACQUIRE_NEW : (ROW.expired -> ACQUIRE_OLD : \
	(IS_ENDED -> ENDED : (IS_RUNNING -> RUNNING : NEXT))))

/* operation_owner.c, operation_owner_find and operation_owner_require: what a fence is worth */
#ifdef NO_FENCE
#define FENCE_FITS	(ROW.status != ABSENT)
#else
#define FENCE_FITS	(ROW.status != ABSENT && ROW.fence == CLIENT.fence)
#endif
#ifdef ENDS_TWICE
#define IS_OPEN		(ROW.status != ABSENT)
#else
#define IS_OPEN		(ROW.status == PENDING)
#endif
#define JUDGE_FENCE	(FENCE_FITS && IS_OPEN -> CURRENT : LOST)

/* The snapshot is taken after the lock; SNAPSHOT_FIRST takes it before. */
#ifdef SNAPSHOT_FIRST
#define LOOK(verdict)	CLIENT.seen = verdict
#define VERDICT			(CLIENT.seen & 15)
#define FENCE_VERDICT	(CLIENT.seen & 15)
#define FOUND			(VERDICT == ACQUIRE_NEW -> FRESH : (CLIENT.seen & OVERTAKEN -> STALE : EXPECTED))
#else
#define LOOK(verdict)	skip
#define VERDICT			JUDGE
#define FENCE_VERDICT	JUDGE_FENCE
#define FOUND			(ROW.status == ABSENT -> FRESH : EXPECTED)
#endif
#define ACQUIRES		(VERDICT <= NEXT)

/*
 * store.c, store_put: a row that exists though none was
 * found, or in another version than the expected one, is 40001.
 */
#ifdef NO_UNIQUE
#define CONFLICTS	false
#else
#define CONFLICTS	(ROW.status != ABSENT && (MINE == FRESH || MINE == STALE))
#endif

/* -- the invariants ------------------------------------------------------- */

#ifdef ONLY_I1
#define CHECK_I1(k)	assert(row[k].effects <= 1 && row[k].outside <= 1)
#else
#define CHECK_I1(k)	skip
#endif

#ifdef ONLY_I2
#define CHECK_I2(k)	assert(!row[k].acknowledged || row[k].status == COMPLETED)
#else
#define CHECK_I2(k)	skip
#endif

#ifdef ONLY_I3
#define CHECK_I3(k)	assert((row[k].effects > 0) == (row[k].status == COMPLETED && !row[k].expired))
#else
#define CHECK_I3(k)	skip
#endif

#ifdef ONLY_I4
#define CHECK_I4_GROWS		assert(CLIENT.fence > ROW.given)
#define CHECK_I4_CURRENT	assert(!CLIENT.superseded)
#else
#define CHECK_I4_GROWS		skip
#define CHECK_I4_CURRENT	skip
#endif

#ifdef ONLY_I5
#define CHECK_I5(d, k)	assert(!client[d].lock[k] || (client[d].at != IDLE && client[d].at != FENCED))
#else
#define CHECK_I5(d, k)	skip
#endif

/* ACQUIRED is told to one at a time, and only while the operation is nobody's. */
#ifdef ONLY_OWNER
#define CHECK_OWNER(k)		assert(COUNT(OWNS) <= 1)
#define CHECK_ACQUIRES		assert(!IS_ENDED && !IS_RUNNING)
#else
#define CHECK_OWNER(k)		skip
#define CHECK_ACQUIRES		skip
#endif

/* -- order among clients, and the end of every step ----------------------- */

#if KEYS == 1
#define RANK_KEY(d)	(client[d].own[0] + 13 * client[d].lock[0] + 26 * client[d].told[0])
#else
#define RANK_KEY(d)	(client[d].own[0] + 13 * client[d].lock[0] + 26 * client[d].told[0] + \
	52 * (client[d].own[1] + 13 * client[d].lock[1] + 26 * client[d].told[1]))
#endif
#define RANK(d)	(client[d].at + 10 * (client[d].key + 2 * (client[d].fence + 8 * \
	(client[d].todo + 4 * (client[d].superseded + 2 * (client[d].later + 2 * \
	(client[d].seen + 32 * RANK_KEY(d))))))))

hidden byte swapped;
#define SWAP(a, b, field) \
	swapped = client[a].field; client[a].field = client[b].field; client[b].field = swapped

#define SWAP_KEY(a, b, k) \
	SWAP(a, b, own[k]); SWAP(a, b, lock[k]); SWAP(a, b, told[k])

inline put_in_order(a, b)
{
	if
	:: RANK(a) < RANK(b) ->
		SWAP(a, b, at);
		SWAP(a, b, key);
		SWAP(a, b, fence);
		SWAP(a, b, todo);
		SWAP(a, b, seen);
		SWAP(a, b, superseded);
		SWAP(a, b, later);
		SWAP_KEY(a, b, 0);
#if KEYS == 2
		SWAP_KEY(a, b, 1);
#endif
	:: else
	fi
}

inline check_key(k)
{
	CHECK_I1(k);
	CHECK_I2(k);
	CHECK_I3(k);
	CHECK_OWNER(k);
	CHECK_I5(0, k);
#if CLIENTS > 1
	CHECK_I5(1, k);
#endif
#if CLIENTS > 2
	CHECK_I5(2, k);
#endif
}

inline end_step()
{
	check_key(0);
#if KEYS > 1
	check_key(1);
#endif
#if CLIENTS > 1
	put_in_order(0, 1);
#endif
#if CLIENTS > 2
	put_in_order(1, 2);
	put_in_order(0, 1);
#endif
}

/* -- what several steps do ------------------------------------------------ */

#if KEYS == 1
#define NOTHING_BEGUN	(CLIENT.own[0] == NOTHING)
#define NOTHING_HELD	(!CLIENT.lock[0])
#define IS_UNFINISHED	(CLIENT.own[0] >= FRESH && CLIENT.own[0] <= STALE)
#define BEGAN_LEASE		(CLIENT.at == LEASING || CLIENT.own[0] == W_LEASE)
#else
#define NOTHING_BEGUN	(CLIENT.own[0] == NOTHING && CLIENT.own[1] == NOTHING)
#define NOTHING_HELD	(!CLIENT.lock[0] && !CLIENT.lock[1])
#define IS_UNFINISHED	((CLIENT.own[0] >= FRESH && CLIENT.own[0] <= STALE) || \
						 (CLIENT.own[1] >= FRESH && CLIENT.own[1] <= STALE))
#define BEGAN_LEASE		(CLIENT.at == LEASING || CLIENT.own[0] == W_LEASE || CLIENT.own[1] == W_LEASE)
#endif

inline forget_fence()
{
	CLIENT.fence = 0;
	CLIENT.todo = ACT;
	CLIENT.superseded = 0;
	CLIENT.later = 0;
}

/* Where a client is that has no transaction. */
inline leave()
{
	CLIENT.seen = NOT_LOOKED;
	if
	:: CLIENT.fence > 0 -> CLIENT.at = FENCED
	:: else -> CLIENT.at = IDLE; CLIENT.key = 0
	fi
}

inline release_locks()
{
	CLIENT.lock[0] = 0;
#if KEYS > 1
	CLIENT.lock[1] = 0;
#endif
}

inline forget_transaction()
{
	CLIENT.own[0] = NOTHING;
#if KEYS > 1
	CLIENT.own[1] = NOTHING;
#endif
}

/*
 * AbortTransaction, and what remains of a backend that dies: rows and memory
 * are gone, then the locks are.  The application keeps the fence of a lease
 * that was committed.
 */
inline roll_back()
{
	if
	:: BEGAN_LEASE -> forget_fence()
	:: else
	fi;
	forget_transaction();
#ifndef KEEP_LOCK
	release_locks();
#endif
	leave()
}

/* begin.c, try_begin: whoever is only told gives the lock back at once */
inline go_on(k)
{
	CLIENT.lock[k] = 0;
	CLIENT.seen = NOT_LOOKED;
	CLIENT.key = 0;
	if
	:: NOTHING_BEGUN && NOTHING_HELD -> CLIENT.at = IDLE
	:: else -> CLIENT.at = OPEN
	fi
}

/* The stored end is told. */
inline tell_end(k)
{
	if
	:: row[k].status == COMPLETED && !row[k].expired -> row[k].acknowledged = 1
	:: else
	fi;
#ifdef DRAIN
	CLIENT.told[k] = (row[k].status == RETRYABLE -> 0 : 1)
#endif
}

/* Another's version of the row has become visible: what this client knows is old. */
inline overtake(d, k, is_version)
{
	if
	:: d != me && is_version && client[d].own[k] == EXPECTED -> client[d].own[k] = STALE
	:: else
	fi;
	if
	:: d != me && is_version && client[d].seen != NOT_LOOKED && client[d].seen < OVERTAKEN &&
			client[d].key == k -> client[d].seen = client[d].seen + OVERTAKEN
	:: else
	fi;
	if
	:: d != me && client[d].fence > 0 && client[d].key == k -> client[d].superseded = 1
	:: else
	fi
}

inline overtake_all(k)
{
	if
	:: CLIENT.own[k] >= W_LEASE && CLIENT.own[k] != W_EXTENDED ->
		overtake(0, k, CLIENT.own[k] != W_DELETED);
#if CLIENTS > 1
		overtake(1, k, CLIENT.own[k] != W_DELETED);
#endif
#if CLIENTS > 2
		overtake(2, k, CLIENT.own[k] != W_DELETED)
#endif
	:: else
	fi
}

inline set_row(k, new_status, new_fence)
{
	row[k].status = new_status;
	row[k].fence = new_fence;
	row[k].due = 0;
	row[k].expired = 0
}

/* ProcArrayEndTransaction: all that the transaction did is visible at once. */
inline publish_key(k)
{
	overtake_all(k);
	if
	:: CLIENT.own[k] == W_LEASE || CLIENT.own[k] == W_EXTENDED -> set_row(k, PENDING, CLIENT.fence)
	:: CLIENT.own[k] == W_COMPLETED -> set_row(k, COMPLETED, 0); row[k].effects++
	:: CLIENT.own[k] == W_FENCED -> set_row(k, COMPLETED, CLIENT.fence); row[k].effects++
	:: CLIENT.own[k] == W_RETRYABLE -> set_row(k, RETRYABLE, 0)
	:: CLIENT.own[k] == W_FENCED_RETRYABLE -> set_row(k, RETRYABLE, CLIENT.fence)
	:: CLIENT.own[k] == W_FAILED -> set_row(k, FAILED, 0)
	/* its fence is drawn like every other; as nobody has it, 0 stands for it */
	:: CLIENT.own[k] == W_RELEASED -> set_row(k, PENDING, 0); row[k].due = 1
	:: CLIENT.own[k] == W_DELETED -> set_row(k, ABSENT, 0)
	:: CLIENT.own[k] >= FRESH && CLIENT.own[k] <= STALE -> row[k].effects++	/* NO_GUARD */
	:: else
	fi
}

inline publish()
{
	publish_key(0);
#if KEYS > 1
	publish_key(1)
#endif
}

/* The answer to COMMIT arrives. */
inline acknowledge_key(k)
{
	if
	:: CLIENT.own[k] == W_COMPLETED || CLIENT.own[k] == W_FENCED || CLIENT.own[k] == W_FAILED ->
		tell_end(k)
	:: else
	fi;
	if
	:: CLIENT.own[k] >= W_FENCED && CLIENT.own[k] != W_RETRYABLE -> forget_fence()
	:: else
	fi
}

/* -- a client works on a key ---------------------------------------------- */

#define CAN_BEGIN	((CLIENT.at == IDLE || (CLIENT.at == OPEN && CLIENT.fence == 0)) && \
					 MINE == NOTHING && !CLIENT.lock[k] && WANTED)
#define ASKED_HERE	(CLIENT.at == ASKED && HERE)
#define JUDGED_HERE	(CLIENT.at == END_JUDGED && HERE && ROW_FREE)
#define OWNS_HERE	(CLIENT.at == OPEN && MINE >= FRESH && MINE <= STALE && ROW_FREE)

/*
 * Whoever would be told IN_PROGRESS or a retry_after may as well ask later.  (Locks are
 * granted in the order of the queue, so asking again and again starves nobody.)
 */
#ifdef DRAIN
#define IS_PAUSING		(!IS_ABSENT && ROW.status == RETRYABLE && !ROW.due)
#define WORTH_ASKING	(!IS_RUNNING && !IS_PAUSING)
#else
#define WORTH_ASKING	true
#endif

#if defined(OUTSIDE) && defined(DRAIN)
#define MAY_END			(CLIENT.todo == DONE)
#else
#define MAY_END			true
#endif

#ifdef OUTSIDE
#define BOUND_TOO		false
#define MAY_COMPLETE	(CLIENT.todo == DONE)
#ifdef RELEASE_AFTER_ACT
#define MAY_RELEASE		true
#else
#define MAY_RELEASE		(CLIENT.later || CLIENT.todo == ACT)
#endif
#else
#define BOUND_TOO		true
#define MAY_COMPLETE	true
#define MAY_RELEASE		true
#endif

/* release.c, leave_earlier_attempt: is there one of which the next begin is told? */
#ifdef RELEASE_FORGETS
#define IS_KNOWN		false
#else
#define IS_KNOWN		CLIENT.later
#endif

/* the outside system compares fences */
#ifdef UNGUARDED_OUTSIDE
#define REFUSED_OUTSIDE	false
#else
#define REFUSED_OUTSIDE	(CLIENT.fence < ROW.highest)
#endif

#if defined(OUTSIDE) && !defined(NO_RECONCILE)
#define FIRST_TODO		(VERDICT == NEXT -> RECONCILE : ACT)
#else
#define FIRST_TODO		ACT
#endif

/* fence.c, fence_next */
#ifdef NO_SEQUENCE
#define NEXT_FENCE		((ROW.status == ABSENT -> 0 : ROW.fence) + 1)
#else
#define NEXT_FENCE		(ROW.sequence + 1)
#endif

proctype Operation(byte me; byte k)
{
end:
	do
	/* begin.c, begin_operation: the first try_begin, or one without the lock; operation_lookup */
	:: d_step { CAN_BEGIN && IS_ENDED && WORTH_ASKING ->
		tell_end(k); end_step() }

	/* advisory_lock.c, lock_acquire_now.  Where it fails and no end is told, nothing has happened. */
	:: d_step { CAN_BEGIN && AVAILABLE && WORTH_ASKING ->
		CLIENT.lock[k] = 1; CLIENT.at = ASKED; CLIENT.key = k; LOOK(JUDGE); end_step() }

	/* begin.c, begin_until; advisory_lock.c, lock_acquire_within */
	:: d_step { CAN_BEGIN && IN_USE && WORTH_ASKING ->
		CLIENT.at = QUEUED; CLIENT.key = k; LOOK(JUDGE); end_step() }
	:: d_step { CLIENT.at == QUEUED && HERE && GRANTABLE ->
		CLIENT.lock[k] = 1; CLIENT.at = ASKED; end_step() }

	/* the wait runs out */
	:: d_step { CLIENT.at == QUEUED && HERE && MAY_FAIL ->
		FAIL; go_on(k); end_step() }

	/* begin.c, carry_out: the end is told */
	:: d_step { ASKED_HERE && VERDICT == ENDED ->
		tell_end(k); go_on(k); end_step() }

	/* begin.c, carry_out: in progress */
	:: d_step { ASKED_HERE && VERDICT == RUNNING ->
		go_on(k); end_step() }

	/* begin.c, acquire_operation: transaction-bound */
	:: d_step { ASKED_HERE && ACQUIRES && BOUND_TOO ->
		CHECK_ACQUIRES;
		MINE = FOUND; CLIENT.at = OPEN; CLIENT.seen = NOT_LOOKED; CLIENT.key = 0; end_step() }

	/* begin.c, acquire_operation and write_lease: a fence is taken, then the row is written */
	:: d_step { ASKED_HERE && ACQUIRES && NOTHING_BEGUN && ROW.sequence < (k == 0 -> LEASES : LEASES_1) ->
		CHECK_ACQUIRES;
		CLIENT.todo = FIRST_TODO;
		CLIENT.later = (VERDICT == NEXT);
		CLIENT.fence = NEXT_FENCE;
		CHECK_I4_GROWS;
		ROW.sequence++;
		ROW.given = CLIENT.fence;
		MINE = FOUND; CLIENT.at = LEASING; CLIENT.seen = NOT_LOOKED; end_step() }
	:: d_step { CLIENT.at == LEASING && HERE && ROW_FREE ->
		if
		:: CONFLICTS -> roll_back()
		:: else -> MINE = W_LEASE; CLIENT.at = OPEN
		fi; end_step() }

	/* begin.c, refuse_attempt */
	:: d_step { ASKED_HERE && VERDICT == NEXT && ROW_FREE && MAY_FAIL ->
		CHECK_ACQUIRES;
		FAIL;
		MINE = FOUND;
		if
		:: CONFLICTS -> roll_back()
		:: else -> MINE = W_FAILED; CLIENT.at = OPEN; CLIENT.seen = NOT_LOOKED; CLIENT.key = 0
		fi; end_step() }

	/* end.c, end_owned: completed; the effect is written by the same transaction */
	:: d_step { OWNS_HERE ->
		if
		:: CONFLICTS -> roll_back()
		:: else -> MINE = W_COMPLETED
		fi; end_step() }

	/* end.c, end_owned: failed, retryable */
	:: d_step { OWNS_HERE && MAY_FAIL ->
		FAIL;
		if
		:: CONFLICTS -> roll_back()
		:: else -> MINE = W_RETRYABLE
		fi; end_step() }

	/* release.c, release_owned: the row that was found stays, the lock goes at once */
	:: d_step { CLIENT.at == OPEN && MINE >= FRESH && MINE <= STALE && MAY_FAIL ->
		FAIL; MINE = NOTHING; go_on(k); end_step() }

#ifdef OUTSIDE
	/* the application asks the outside system, which takes note of the fence */
	:: d_step { CLIENT.at == FENCED && HERE && CLIENT.todo == RECONCILE ->
		if
		:: REFUSED_OUTSIDE -> forget_fence(); leave()
		:: else ->
			ROW.highest = CLIENT.fence;
			CLIENT.todo = (ROW.outside > 0 -> DONE : ACT)
		fi; end_step() }

	/* the outside effect */
	:: d_step { CLIENT.at == FENCED && HERE && CLIENT.todo == ACT ->
		if
		:: REFUSED_OUTSIDE -> forget_fence(); leave()
		:: else ->
			ROW.highest = CLIENT.fence; ROW.outside++;
			CLIENT.todo = DONE
		fi; end_step() }
#endif

	/* operation_owner.c, lock_by_fence.  Where end_wait runs out nothing has happened. */
	:: d_step { CLIENT.at == FENCED && HERE && MAY_END && AVAILABLE ->
		CLIENT.lock[k] = 1; CLIENT.at = END_LOCKED; LOOK(JUDGE_FENCE); end_step() }
	:: d_step { CLIENT.at == FENCED && HERE && MAY_END && IN_USE ->
		CLIENT.at = END_QUEUED; LOOK(JUDGE_FENCE); end_step() }
	:: d_step { CLIENT.at == END_QUEUED && HERE && GRANTABLE ->
		CLIENT.lock[k] = 1; CLIENT.at = END_LOCKED; end_step() }

	/* operation_owner.c, operation_owner_find, operation_owner_require: the fence is current */
	:: d_step { CLIENT.at == END_LOCKED && HERE && FENCE_VERDICT == CURRENT ->
		CHECK_I4_CURRENT;
		MINE = FOUND; CLIENT.at = END_JUDGED; CLIENT.seen = NOT_LOOKED; end_step() }

	/* operation_owner.c, lease_lost: ID409, the transaction rolls back, the attempt is over */
	:: d_step { CLIENT.at == END_LOCKED && HERE && FENCE_VERDICT == LOST ->
		forget_fence(); roll_back(); end_step() }

	/* end.c, end_leased; lease.c; release.c, release_leased.  A note of progress is an
	 * extension: it is written to the row by the current fence, and nobody else writes it. */
	:: d_step { JUDGED_HERE && CONFLICTS ->
		roll_back(); end_step() }
	:: d_step { JUDGED_HERE && !CONFLICTS && MAY_COMPLETE ->
		MINE = W_FENCED; CLIENT.at = OPEN; end_step() }
	:: d_step { JUDGED_HERE && !CONFLICTS && MAY_FAIL ->
		FAIL; MINE = W_FENCED_RETRYABLE; CLIENT.at = OPEN; end_step() }
	:: d_step { JUDGED_HERE && !CONFLICTS && MAY_FAIL ->
		FAIL; MINE = W_EXTENDED; CLIENT.at = OPEN; end_step() }
	:: d_step { JUDGED_HERE && !CONFLICTS && MAY_RELEASE && MAY_FAIL ->
		FAIL; MINE = (IS_KNOWN -> W_RELEASED : W_DELETED); CLIENT.at = OPEN; end_step() }

	/* the application dies and forgets the fence; the lease stays */
	:: d_step { CLIENT.at == FENCED && HERE && MAY_FAIL ->
		FAIL; forget_fence(); leave(); end_step() }

#if KEYS > 1 && !defined(NO_DEADLOCK_DETECTOR)
	/* 40P01: the holder of what this client waits for waits for what this one holds */
#define WAITS_FOR_ME(d)	(client[d].lock[k] && (client[d].at == QUEUED || client[d].at == END_QUEUED) && \
						 client[d].key != k && CLIENT.lock[1 - k])
	:: d_step { CLIENT.at == QUEUED && HERE && SOME(WAITS_FOR_ME) ->
		roll_back(); end_step() }
#endif
	od
}

/* -- a client's transaction ----------------------------------------------- */

#ifdef NO_GUARD
#define REFUSED_COMMIT	false
#else
#define REFUSED_COMMIT	IS_UNFINISHED
#endif
#define IN_TRANSACTION	(CLIENT.at != IDLE && CLIENT.at != FENCED && CLIENT.at != HALF)

/* LOCKS_FIRST turns the order of CommitTransaction round. */
#ifdef LOCKS_FIRST
#define COMMIT_STARTS	release_locks()
#define COMMIT_ENDS		publish()
#else
#define COMMIT_STARTS	publish()
#define COMMIT_ENDS		release_locks()
#endif

proctype Transaction(byte me)
{
end:
	do
	/* transaction.c, transaction_require_ended; then CommitTransaction of xact.c */
	:: d_step { CLIENT.at == OPEN && !REFUSED_COMMIT ->
		COMMIT_STARTS; CLIENT.at = HALF; end_step() }
	:: d_step { CLIENT.at == HALF ->
		COMMIT_ENDS;
		acknowledge_key(0);
#if KEYS > 1
		acknowledge_key(1);
#endif
		forget_transaction(); leave(); end_step() }

	/* the answer is lost: the application begins again, without a fence */
	:: d_step { CLIENT.at == HALF && MAY_FAIL ->
		FAIL; COMMIT_ENDS; forget_fence(); forget_transaction(); leave(); end_step() }

#ifndef OUTSIDE
	/*
	 * The answer is lost, and the application repeats the transaction of its
	 * fence, with all of its writes: where they were committed, the end fails
	 * and takes the repeated ones with it.
	 */
	:: d_step { CLIENT.at == HALF && MAY_FAIL && CLIENT.fence > 0 && !BEGAN_LEASE ->
		FAIL; COMMIT_ENDS; forget_transaction(); leave(); end_step() }
#endif

	/* ROLLBACK, an error, a commit that is refused, or the backend dies */
	:: d_step { IN_TRANSACTION && MAY_FAIL ->
		FAIL; roll_back(); end_step() }
	od
}

/* -- the clock ------------------------------------------------------------ */

/*
 * Retention must be longer than anybody still sends the request again.  Inside
 * the database nothing depends on that: a forgotten key is a new key.  Outside,
 * an owner who sleeps longer than lease and retention is not known any more.
 */
#if defined(OUTSIDE) && !defined(SHORT_RETENTION)
#define MAY_EXPIRE	(!SOME(HAS_FENCE))
#else
#define MAY_EXPIRE	true
#endif

/* A lease that runs out under a living owner is a fault, too. */
#ifdef DRAIN
#define OWNER_LIVES		(ROW.status == PENDING && SOME(HAS_FENCE))
#define MAY_RUN_OUT		(!OWNER_LIVES || MAY_FAIL)
#define RUN_OUT			faults = faults - (OWNER_LIVES -> 1 : 0)
#else
#define MAY_RUN_OUT		true
#define RUN_OUT			skip
#endif

proctype Clock(byte k)
{
end:
	do
	:: d_step { (ROW.status == PENDING || ROW.status == RETRYABLE) && !ROW.due && MAY_RUN_OUT ->
		RUN_OUT; ROW.due = 1; end_step() }
	:: d_step { (ROW.status == COMPLETED || ROW.status == FAILED || ROW.due) && !ROW.expired &&
			MAY_EXPIRE && MAY_FAIL ->
		FAIL;
		ROW.expired = 1; ROW.effects = 0; ROW.outside = 0; ROW.acknowledged = 0; end_step() }
	od
}

/* -- collection ----------------------------------------------------------- */

#ifdef NO_RECHECK
#define STILL_EXPIRED	(ROW.status != ABSENT)
#else
#define STILL_EXPIRED	(ROW.status != ABSENT && ROW.expired)
#endif
#ifdef LOCKS_FIRST
#define ANY_WRITES(d)	(client[d].own[k] >= W_LEASE)
#else
#define ANY_WRITES(d)	(client[d].own[k] >= W_LEASE && client[d].at != HALF)
#endif

/* to read what will be skipped is of no use */
#ifdef DRAIN
#define WORTH_READING	(!SOME(ANY_WRITES))
#else
#define WORTH_READING	true
#endif

/* gc.c, gc_sweep, of which there is one at a time; bulk.c, bulk_sweep */
proctype Sweep(byte k)
{
end:
	do
	/* an expired row is read */
	:: d_step { sweep == 0 && ROW.status != ABSENT && ROW.expired && WORTH_READING ->
		sweep = SWEEP_READ(k); end_step() }

	/* SKIP LOCKED, and expiry is checked again under the row lock */
	:: d_step { sweep == SWEEP_READ(k) ->
		sweep = (STILL_EXPIRED && !SOME(ANY_WRITES) -> SWEEP_DELETED(k) : 0); end_step() }

	/* commit */
	:: d_step { sweep == SWEEP_DELETED(k) ->
		sweep = 0; set_row(k, ABSENT, 0); end_step() }

	/* it dies */
	:: d_step { sweep == SWEEP_DELETED(k) && MAY_FAIL ->
		FAIL; sweep = 0; end_step() }
	od
}

/* -- everything drains ---------------------------------------------------- */

/* Nobody can take a step any more: then everybody has seen the end of each key. */
#ifdef ONLY_I6
#define CHECK_I6(d)			assert(client[d].at == IDLE && client[d].told[0] && client[d].told[KEYS - 1])
#define CHECK_NEVER_STUCK	assert(false)
#else
#define CHECK_I6(d)			skip
#define CHECK_NEVER_STUCK	skip
#endif

proctype Monitor()
{
end:
	atomic { timeout ->
#ifdef DRAIN
		CHECK_I6(0);
#if CLIENTS > 1
		CHECK_I6(1);
#endif
#if CLIENTS > 2
		CHECK_I6(2);
#endif
		skip
#else
		CHECK_NEVER_STUCK
#endif
	}
}

init {
	atomic {
		byte i = 0;
		do
		:: i < CLIENTS ->
			run Transaction(i);
			run Operation(i, 0);
#if KEYS > 1
			run Operation(i, 1);
#endif
			i++
		:: else -> break
		od;
		run Clock(0);
		run Sweep(0);
#if KEYS > 1
		run Clock(1);
		run Sweep(1);
#endif
		run Monitor();
		i = 0
	}
}
