/*
 * worker.h
 *		The background collector.
 */
#ifndef IDEM_WORKER_H
#define IDEM_WORKER_H

extern void worker_register(void);

#endif							/* IDEM_WORKER_H */
