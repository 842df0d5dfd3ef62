// Calls the recipe for each line of the input: play.py says how.
#include <iostream>

#include "pay.hpp"

int
main()
{
	Once		once("payments/tenant-1", "");
	std::string key, account;
	int			amount;

	while (std::cin >> key >> account >> amount)
	{
		try
		{
			const Answer answer = pay(once, key, account, amount);

			std::cout << answer.code << (answer.replayed ? " replay " : " new ") << answer.payload << std::endl;
		}
		catch (const pqxx::serialization_failure &)
		{
			std::cout << "error 40001" << std::endl;
		}
		catch (const pqxx::sql_error &error)
		{
			std::cout << "error " << error.sqlstate() << std::endl;
		}
		catch (const RolledBack &)
		{
			std::cout << "error rolled-back" << std::endl;
		}
	}
}
