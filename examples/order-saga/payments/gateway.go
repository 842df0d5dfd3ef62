package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"example.org/idempotency"
)

var errDeclined = errors.New("the card was declined")

// gateway is the card gateway: it does once what it is asked for under one key, and
// refuses a fence that is lower than one it has seen.
type gateway struct{ url string }

var client = &http.Client{Timeout: 3 * time.Second}

// The keys are the order's, not the attempt's: each attempt asks for the same charge.
func (g gateway) charge(ctx context.Context, o order, fence int64) (string, error) {
	return g.post(ctx, "/charges", o.ID+":charge", fence, map[string]any{"order": o.ID, "amount": o.Amount, "card": o.Card})
}

func (g gateway) refund(ctx context.Context, o order, charge string, fence int64) error {
	_, err := g.post(ctx, "/refunds", o.ID+":refund", fence, map[string]any{"order": o.ID, "charge": charge})
	return err
}

func (g gateway) post(ctx context.Context, path, key string, fence int64, body any) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	request.Header.Set("Idempotency-Key", strconv.Quote(key))
	request.Header.Set("X-Fence", strconv.FormatInt(fence, 10))
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct{ ID string }
	switch response.StatusCode {
	case http.StatusCreated:
		err := json.NewDecoder(response.Body).Decode(&answer)
		return answer.ID, err
	case http.StatusPaymentRequired:
		return "", errDeclined
	case http.StatusServiceUnavailable:
		return "", fmt.Errorf("%w: the gateway is busy", idempotency.ErrNotDone)
	}
	return "", fmt.Errorf("the gateway answered %s", response.Status)
}
