-- Calls the recipe for each line of the input: play.py says how.
module Main (main) where

import Control.Exception (Handler (..), catches)
import Control.Monad (unless)
import Data.Aeson (encode)
import qualified Data.ByteString.Char8 as ByteString
import qualified Data.ByteString.Lazy.Char8 as Lazy
import Data.Pool (Pool, createPool)
import qualified Data.Text as Text
import Database.PostgreSQL.Simple
import Once
import Pay (pay)
import System.IO

main :: IO ()
main = do
  hSetBuffering stdout LineBuffering
  pool <- createPool (connectPostgreSQL ByteString.empty) close 1 60 1
  serve pool

serve :: Pool Connection -> IO ()
serve pool = do
  over <- isEOF
  unless over $ do
    [key, account, amount] <- words <$> getLine
    answer pool key account (read amount) `catches` [Handler failed, Handler rolledBack]
    serve pool

answer :: Pool Connection -> String -> String -> Int -> IO ()
answer pool key account amount = do
  Answer status json again <- pay pool (Text.pack key) (Text.pack account) amount
  putStrLn $ unwords [show status, if again then "replay" else "new", Lazy.unpack (encode json)]

failed :: SqlError -> IO ()
failed problem = putStrLn $ "error " ++ ByteString.unpack (sqlState problem)

rolledBack :: RolledBack -> IO ()
rolledBack _ = putStrLn "error rolled-back"
