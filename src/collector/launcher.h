/*
 * launcher.h
 *		The background collector.
 */
#ifndef IDEM_LAUNCHER_H
#define IDEM_LAUNCHER_H

extern void launcher_register(void);

#endif							/* IDEM_LAUNCHER_H */
