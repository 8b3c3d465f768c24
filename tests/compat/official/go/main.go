// Sends or receives with the official client for Go; tests/compat/official/clients.py says how each
// such program is called and what it prints.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const laneCount = 10

var (
	kinds     = []string{"ordered", "ordinary", "delayed", "transactional"}
	began     = time.Now()
	endpoints string
	prefix    string
	count     int
	out       sync.Mutex
)

type event map[string]any

func say(what event) {
	line, err := json.Marshal(what)
	check(err)
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(line))
}

func sayFailed(what string, err error) {
	say(event{"event": "failed", "what": what, "error": err.Error()})
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	endpoints, prefix = os.Args[2], os.Args[3]
	var err error
	count, err = strconv.Atoi(os.Args[4])
	check(err)
	if os.Args[1] == "produce" {
		produce()
	} else {
		consume()
	}
	// The harness closes the input when it has seen enough.
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func config(group string) *rocketmq.Config {
	return &rocketmq.Config{
		Endpoint:      endpoints,
		ConsumerGroup: group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func topics() []string {
	var found []string
	for _, kind := range kinds {
		found = append(found, prefix+"-"+kind)
	}
	return found
}

// --- Sending ---

func produce() {
	producer, err := rocketmq.NewProducer(
		config(""),
		rocketmq.WithTopics(topics()...),
		rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{
			Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
				if message.GetProperties()["fate"] == "commit" {
					return rocketmq.COMMIT
				}
				return rocketmq.ROLLBACK
			},
		}),
	)
	check(err)
	check(producer.Start())
	say(event{"event": "ready"})
	var lanes sync.WaitGroup
	for _, kind := range kinds {
		for lane := 0; lane < laneCount; lane++ {
			lanes.Add(1)
			go func() {
				defer lanes.Done()
				for number := lane; number < count; number += laneCount {
					for !send(producer, kind, number) {
						time.Sleep(50 * time.Millisecond)
					}
				}
			}()
		}
	}
	lanes.Wait()
	say(event{"event": "done"})
}

func send(producer rocketmq.Producer, kind string, number int) bool {
	name := fmt.Sprintf("%s:%d", kind, number)
	message := &rocketmq.Message{Topic: prefix + "-" + kind, Body: []byte(name)}
	isKept, dueMs := true, int64(0)
	var err error
	switch kind {
	case "ordered":
		message.SetMessageGroup(fmt.Sprintf("g%d", number%laneCount))
	case "delayed":
		due := time.Now().Add(time.Duration(2+number%5) * time.Second)
		dueMs = due.UnixMilli()
		message.SetDelayTimestamp(due)
	}
	if kind == "transactional" {
		isKept = number%7 != 3
		err = sendTransaction(producer, message, name, isKept)
	} else {
		_, err = producer.Send(context.Background(), message)
	}
	if err != nil {
		sayFailed("send "+name, err)
		return false
	}
	say(event{
		"event": "acked", "kind": kind, "number": number, "due_ms": dueMs, "kept": isKept,
		"at_ms": time.Since(began).Milliseconds(),
	})
	return true
}

func sendTransaction(
	producer rocketmq.Producer, message *rocketmq.Message, name string, isKept bool,
) error {
	fate := map[bool]string{true: "commit", false: "rollback"}[isKept]
	message.AddProperty("fate", fate)
	transaction := producer.BeginTransaction()
	_, err := producer.SendWithTransaction(context.Background(), message, transaction)
	if err != nil {
		return err
	}
	if isKept {
		err = transaction.Commit()
	} else {
		err = transaction.RollBack()
	}
	if err != nil {
		// The cluster asks what became of it, and the checker says so.
		sayFailed("end "+name, err)
	}
	return nil
}

// --- Receiving ---

func consume() {
	subscriptions := map[string]*rocketmq.FilterExpression{}
	for _, topic := range topics() {
		subscriptions[topic] = rocketmq.SUB_ALL
	}
	for _, group := range []string{"simple", "simple-orderly"} {
		// A simple consumer asks its topics in turn, and waits at each that is empty.
		for _, topic := range topics() {
			consumer, err := rocketmq.NewSimpleConsumer(
				config(prefix+"-"+group),
				rocketmq.WithSimpleAwaitDuration(time.Second),
				rocketmq.WithSimpleSubscriptionExpressions(
					map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL},
				),
			)
			check(err)
			check(consumer.Start())
			go receive(consumer, group)
		}
	}
	for _, group := range []string{"push", "push-orderly"} {
		consumer, err := rocketmq.NewPushConsumer(
			config(prefix+"-"+group),
			rocketmq.WithPushAwaitDuration(time.Second),
			rocketmq.WithPushSubscriptionExpressions(subscriptions),
			rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
				Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
					sayReceived(group, message)
					return rocketmq.SUCCESS
				},
			}),
		)
		check(err)
		check(consumer.Start())
	}
	say(event{"event": "ready"})
}

func receive(consumer rocketmq.SimpleConsumer, group string) {
	for {
		found, err := consumer.Receive(context.Background(), 32, 10*time.Second)
		if err != nil && !isEmpty(err) {
			sayFailed(group, err)
		}
		var acks sync.WaitGroup
		for _, message := range found {
			sayReceived(group, message)
			acks.Add(1)
			go func() {
				defer acks.Done()
				if err := consumer.Ack(context.Background(), message); err != nil {
					sayFailed(group+" ack", err)
				}
			}()
		}
		acks.Wait()
	}
}

// The client says with an error that there is no message.
func isEmpty(err error) bool {
	status, ok := err.(*rocketmq.ErrRpcStatus)
	if !ok {
		return strings.Contains(err.Error(), "MESSAGE_NOT_FOUND")
	}
	return status.Code == int32(v2.Code_MESSAGE_NOT_FOUND)
}

func sayReceived(group string, message *rocketmq.MessageView) {
	say(event{
		"event": "received", "group": group, "body": string(message.GetBody()),
		"now_ms": time.Now().UnixMilli(), "attempt": message.GetDeliveryAttempt(),
	})
}
