using System;
using System.Data.Odbc;

/// <summary>Calls the recipe for each line of the input: play.py says how.</summary>
public static class Program
{
    public static void Main()
    {
        Func<string, string> variable = Environment.GetEnvironmentVariable;
        string options = string.Format(
            "Driver=PostgreSQL Unicode;Server={0};Port={1};Uid={2};Database={3};Protocol=7.4-0;UseServerSidePrepare=0",
            variable("PGHOST"), variable("PGPORT"), variable("PGUSER"), variable("PGDATABASE"));
        var once = new Once(options, "payments/tenant-1");
        for (string line = Console.ReadLine(); line != null; line = Console.ReadLine())
        {
            string[] words = line.Split(' ');
            try
            {
                Answer answer = Pay.Run(once, words[0], words[1], int.Parse(words[2]));
                Console.WriteLine("{0} {1} {2}", answer.Code, answer.Replayed ? "replay" : "new", answer.Payload);
            }
            catch (OdbcException error)
            {
                Console.WriteLine("error " + Once.SqlState(error));
            }
            catch (RolledBack)
            {
                Console.WriteLine("error rolled-back");
            }
        }
    }
}
