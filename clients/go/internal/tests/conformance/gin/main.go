// The conformance program for gin. PORT and DATABASE_URL come from the
// environment.
package main

import (
	"log"
	"net/http"

	"example.org/idempotency"
	"example.org/idempotency/idemgin"
	"example.org/idempotency/internal/tests/payments"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
)

func main() {
	middleware, err := payments.Middleware()
	if err != nil {
		log.Fatal(err)
	}
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.GET("/", func(c *gin.Context) { c.Status(http.StatusOK) })
	engine.POST("/payments", idemgin.Transaction(middleware, pay))
	engine.POST("/charges", idemgin.Lease(middleware, charge))
	log.Fatal(engine.Run(payments.Address()))
}

func pay(c *gin.Context, tx pgx.Tx) error {
	payment, err := payments.Read(c.Request)
	if err != nil {
		return err
	}
	response, err := payments.Pay(c.Request.Context(), tx, payment)
	if err != nil {
		return err
	}
	for name, value := range response.Headers {
		c.Header(name, value)
	}
	c.JSON(response.Code, response.Payload)
	return nil
}

func charge(c *gin.Context, _ idempotency.Operation) (idempotency.Completion[pgx.Tx], error) {
	payment, err := payments.Read(c.Request)
	if err != nil {
		return idempotency.Completion[pgx.Tx]{}, err
	}
	return payments.Charge(c.Request.Context(), payment)
}
