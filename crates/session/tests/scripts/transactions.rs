//! Transactions: publishes and acks wait for their commit, in their order.

use crate::script::{Script, deliveries};
use amqp::{Request, Settlement};

#[test]
fn a_commit_hands_on_the_publishes_then_the_acks_and_a_rollback_nothing() {
    let mut script = Script::begun();
    script.ask(1, crate::script::consume("q", false));
    script.answer(partition::Reply::Consuming);
    script.deliver(1, 4, "held");
    script.ask(1, Request::TxSelect);
    script.said();
    script.publish(1, "q", "a", 1);
    script.publish(1, "q", "b", 2);
    assert_eq!(script.said(), [""; 0]);
    script.ask(1, Request::TxCommit { settles: vec![(Settlement::Ack, deliveries(1, 4))] });
    let said = ["p1 <- publish a #1", "p1 <- publish b #2", "p1 <- ack 1 from 4 of 1", "1: ok"];
    assert_eq!(script.said(), said);
    script.publish(1, "q", "c", 3);
    script.ask(1, Request::TxRollback);
    script.ask(1, Request::TxCommit { settles: Vec::new() });
    assert_eq!(script.said(), ["1: ok", "1: ok"], "what was rolled back is not there any more");
}

#[test]
fn a_channel_that_ends_takes_its_transaction_along() {
    let mut script = Script::begun();
    script.ask(1, Request::TxSelect);
    script.publish(1, "q", "a", 1);
    script.close(1);
    script.open(1);
    script.ask(1, Request::TxSelect);
    script.ask(1, Request::TxCommit { settles: Vec::new() });
    assert_eq!(script.said(), ["1: ok", "1: ok", "1: ok"]);
}
