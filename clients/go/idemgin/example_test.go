package idemgin_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"example.org/idempotency"
	"example.org/idempotency/idemgin"
	"example.org/idempotency/idemhttp"
	"example.org/idempotency/pgxv5"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
)

// ginRoutes does the same with gin.
func ginRoutes(engine *gin.Engine, middleware *idemhttp.Middleware[pgx.Tx]) {
	engine.POST("/notes", idemgin.Transaction(middleware, func(c *gin.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(c.Request.Context(), "INSERT INTO effect VALUES ('note')"); err != nil {
			return err
		}
		c.JSON(http.StatusCreated, gin.H{"noted": true})
		return nil
	}))
}

func Example() {
	// the address of the server is in the environment: PGHOST and so on
	pool, err := pgxv5.Connect(context.Background(), "sslmode=disable")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	_, err = pool.Exec(context.Background(), "CREATE EXTENSION IF NOT EXISTS idempotency; CREATE TABLE IF NOT EXISTS effect (key text NOT NULL)")
	if err != nil {
		log.Fatal(err)
	}
	client := idempotency.New(pgxv5.Pool(pool), idempotency.Options{Scope: "notes"})
	gin.SetMode(gin.TestMode)
	engine := gin.New()
	ginRoutes(engine, idemhttp.New(client, idemhttp.Options{Principal: func(*http.Request) string { return "ann" }}))
	key := fmt.Sprint("example-", time.Now().UnixNano())
	for i := 0; i < 2; i++ {
		request, answer := httptest.NewRequest(http.MethodPost, "/notes", nil), httptest.NewRecorder()
		request.Header.Set("Idempotency-Key", `"`+key+`"`)
		engine.ServeHTTP(answer, request)
		fmt.Println(answer.Code, answer.Body, answer.Header().Get("Idempotency-Replayed") == "true")
	}
	// Output:
	// 201 {"noted":true} false
	// 201 {"noted":true} true
}
