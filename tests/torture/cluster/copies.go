package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// copies of a queue's partition, as its leader knows them.
type copies struct {
	Partition int   `json:"partition"`
	Leads     *bool `json:"leads"`
	Committed int64 `json:"committed_index"`
	Members   []struct {
		Synced *int64 `json:"synced_index"`
		Heard  bool   `json:"heard"`
	} `json:"members"`
}

// CaughtUp waits until every copy has on its disk what was committed within the last second, and says how long that took. A node that comes
// back is as good as away until then: the next death would be the second one at once.
func (l *Leveret) CaughtUp(nodes []*Node, patience time.Duration) (time.Duration, error) {
	began, asked, committed := time.Now(), time.Now(), map[int]int64(nil)
	for {
		led := map[int]copies{}
		for _, n := range nodes {
			if err := l.led(n, led); err != nil {
				return time.Since(began), err
			}
		}
		if committed == nil && len(led) > 0 {
			asked, committed = time.Now(), map[int]int64{}
			for partition, at := range led {
				committed[partition] = at.Committed
			}
		}
		behind := ""
		for partition, index := range committed {
			at, is_led := led[partition]
			if !is_led {
				behind = fmt.Sprintf("nobody leads partition %d", partition)
			}
			for _, member := range at.Members {
				if !member.Heard || member.Synced == nil || *member.Synced < index {
					behind = fmt.Sprintf("a copy of partition %d has not got to %d", partition, index)
				}
			}
		}
		took := time.Since(began)
		if behind == "" && committed != nil {
			if time.Since(asked) < time.Second {
				return took, nil
			}
			// Much was committed while it took its time.
			committed = nil
			continue
		}
		if took > patience {
			return took, fmt.Errorf("after %v %s", took, behind)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// led adds the partitions that a node leads.
func (l *Leveret) led(n *Node, led map[int]copies) error {
	request, err := http.NewRequest("GET", fmt.Sprintf("http://%s:15672/api/leveret/queues", n.Address), nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth("guest", "guest")
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("node %d answers %s", n.Number, response.Status)
	}
	var all []copies
	if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
		return err
	}
	for _, queue := range all {
		if queue.Leads != nil && *queue.Leads {
			led[queue.Partition] = queue
		}
	}
	return nil
}
