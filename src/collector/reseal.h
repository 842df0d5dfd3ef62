/*
 * reseal.h
 *		Seals stored responses with the newest key.
 */
#ifndef IDEM_RESEAL_H
#define IDEM_RESEAL_H

#include "postgres.h"

extern int64 reseal(int64 max_rows);

#endif							/* IDEM_RESEAL_H */
