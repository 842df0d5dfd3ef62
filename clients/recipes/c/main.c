/* Calls the recipe for each line of the input: play.py says how. */
#include <stdio.h>
#include <stdlib.h>

#include "pay.h"

int
main(void)
{
	PGconn	   *connection = PQconnectdb("");
	char		key[64],
				account[64],
				amount[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%63s %63s %15s", key, account, amount) == 3)
	{
		Payment		payment = {key, account, amount};
		Answer		answer;

		if (pay(connection, &payment, &answer))
			printf("%d %s %s\n", answer.code, answer.replayed ? "replay" : "new", answer.payload);
		else
			printf("error %s\n", answer.error);
		free(answer.payload);
	}
	PQfinish(connection);
	return 0;
}
