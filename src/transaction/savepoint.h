/*
 * savepoint.h
 *		What the end of a savepoint does to the journal.
 */
#ifndef IDEM_SAVEPOINT_H
#define IDEM_SAVEPOINT_H

extern void savepoint_undo(int level);
extern void savepoint_hand_over(int level);

#endif							/* IDEM_SAVEPOINT_H */
