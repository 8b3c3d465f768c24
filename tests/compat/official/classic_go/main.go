// Sends or receives with RocketMQ's classic client for Go; tests/compat/official/clients.py says
// how each such program is called and what it prints. Its groups are a concurrent push consumer and
// an orderly one.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	laneCount     = 10
	startTriesMax = 5
)

var (
	kinds   = []string{"ordered", "ordinary", "delayed", "transactional"}
	levelMs = []int64{0, 1_000, 5_000}
	began   = time.Now()
	servers primitive.NamesrvAddr
	prefix  string
	count   int
	out     sync.Mutex
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
	servers, prefix = strings.Split(os.Args[2], ";"), os.Args[3]
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

// --- Sending ---

// send sends a message, and again as often as the client itself does.
type send func(message *primitive.Message) (*primitive.SendResult, error)

// byLane chooses the queue of a message by its sharding key, which is the number of its lane. The
// client's own selectors count on the order of the queues, which it turns twice with a new route.
type byLane struct{}

func (byLane) Select(
	message *primitive.Message, queues []*primitive.MessageQueue, _ string,
) *primitive.MessageQueue {
	lane, err := strconv.Atoi(message.GetShardingKey())
	check(err)
	inOrder := slices.SortedFunc(slices.Values(queues), func(a, b *primitive.MessageQueue) int {
		return cmp.Or(cmp.Compare(a.BrokerName, b.BrokerName), cmp.Compare(a.QueueId, b.QueueId))
	})
	return inOrder[lane%len(inOrder)]
}

// fates executes transactions and answers what became of them.
type fates struct{}

func (fates) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	if message.GetProperty("fate") == "commit" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (f fates) CheckLocalTransaction(
	message *primitive.MessageExt,
) primitive.LocalTransactionState {
	return f.ExecuteLocalTransaction(&message.Message)
}

func options(name string) []producer.Option {
	return []producer.Option{
		producer.WithNameServer(servers),
		producer.WithGroupName(prefix + "-" + name),
		producer.WithInstanceName(name),
	}
}

func sender(name string, more ...producer.Option) send {
	made, err := rocketmq.NewProducer(append(options(name), more...)...)
	check(err)
	check(made.Start())
	return func(message *primitive.Message) (*primitive.SendResult, error) {
		return made.SendSync(context.Background(), message)
	}
}

func transactionSender() send {
	made, err := rocketmq.NewTransactionProducer(fates{}, options("transactions")...)
	check(err)
	check(made.Start())
	return func(message *primitive.Message) (*primitive.SendResult, error) {
		result, err := made.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return nil, err
		}
		return result.SendResult, nil
	}
}

func produce() {
	plain := sender("plain")
	senders := map[string]send{
		"ordered":       sender("ordered", producer.WithQueueSelector(byLane{})),
		"ordinary":      plain,
		"delayed":       plain,
		"transactional": transactionSender(),
	}
	say(event{"event": "ready"})
	var lanes sync.WaitGroup
	for _, kind := range kinds {
		for lane := range laneCount {
			lanes.Go(func() {
				for number := lane; number < count; number += laneCount {
					for !isSent(senders[kind], kind, number) {
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
	}
	lanes.Wait()
	say(event{"event": "done"})
}

func isSent(by send, kind string, number int) bool {
	name := fmt.Sprintf("%s:%d", kind, number)
	message := primitive.NewMessage(prefix+"-"+kind, []byte(name))
	message.WithTag("tag").WithKeys([]string{fmt.Sprintf("key%d", number)})
	isKept, dueMs := true, int64(0)
	switch kind {
	case "ordered":
		message.WithShardingKey(strconv.Itoa(number % laneCount))
	case "delayed":
		level := 1 + number%2
		message.WithDelayTimeLevel(level)
		dueMs = time.Now().UnixMilli() + levelMs[level]
	case "transactional":
		isKept = number%7 != 3
		message.WithProperty("fate", map[bool]string{true: "commit", false: "rollback"}[isKept])
	}
	result, err := by(message)
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("status %d", result.Status)
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

// --- Receiving ---

func consume() {
	start("push", false)
	start("push-orderly", true)
	say(event{"event": "ready"})
}

// start tries again if need be: a name server may be the dead node.
func start(group string, isOrderly bool) {
	for try := 1; ; try++ {
		err := push(group, try, isOrderly)
		if err == nil {
			return
		}
		if try == startTriesMax {
			check(err)
		}
		sayFailed("start "+group, err)
		time.Sleep(500 * time.Millisecond)
	}
}

func push(group string, try int, isOrderly bool) error {
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers),
		consumer.WithGroupName(prefix+"-"+group),
		consumer.WithInstance(fmt.Sprintf("%s-%d", group, try)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumerOrder(isOrderly),
	)
	if err != nil {
		return err
	}
	receive := func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			say(event{
				"event": "received", "group": group, "body": string(message.Body),
				"now_ms": time.Now().UnixMilli(), "attempt": 1 + message.ReconsumeTimes,
			})
		}
		return consumer.ConsumeSuccess, nil
	}
	for _, kind := range kinds {
		if err := made.Subscribe(prefix+"-"+kind, consumer.MessageSelector{}, receive); err != nil {
			return err
		}
	}
	return made.Start()
}
