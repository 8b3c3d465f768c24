// Command etcd is etcd's own server, in the version that go.mod names: that module has no command.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
