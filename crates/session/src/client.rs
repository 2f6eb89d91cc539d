//! What a session says to its client and asks about it: the machine of a protocol, of which the
//! session sees only this.
//!
//! Invariant: no bytes of a protocol pass here. A message goes out in its parts; how they are
//! written the machine knows.

use amqp::{
    AuthRefused, ChannelError, ChannelId, Confirm, ConnectionError, ConsumerTag, Delivery, GetDelivery, Mechanism,
    Publish, Reply, ReturnedMessage,
};
use std::collections::HashMap;

/// Declares the trait, and that the AMQP machine has it: each call is the call of the same name
/// there.
macro_rules! client {
    (
        says { $($(#[$said:meta])* fn $say:ident($($arg:ident: $of:ty),*) $(-> $out:ty)?;)* }
        is_asked { $($(#[$asked:meta])* fn $ask:ident($($key:ident: $of_key:ty),*) -> $answer:ty;)* }
    ) => {
        /// The protocol's side of a connection.
        pub trait Client {
            $($(#[$said])* fn $say(&mut self, $($arg: $of),*) $(-> $out)?;)*
            $($(#[$asked])* fn $ask(&self, $($key: $of_key),*) -> $answer;)*
        }

        impl Client for amqp::Connection {
            $(#[inline] fn $say(&mut self, $($arg: $of),*) $(-> $out)? { amqp::Connection::$say(self, $($arg),*) })*
            $(#[inline] fn $ask(&self, $($key: $of_key),*) -> $answer { amqp::Connection::$ask(self, $($key),*) })*
        }
    };
}

client! {
    says {
        /// The login is right, or refused.
        fn authenticated(result: Result<(), AuthRefused>);
        /// The virtual host is open, or refused.
        fn opened(result: Result<(), ConnectionError>);
        /// A new password was taken down, or refused.
        fn secret_updated(result: Result<(), ConnectionError>);
        /// The answer to the request of a channel.
        fn reply(channel: ChannelId, reply: Reply);
        /// Ends a channel, or the connection if the code is a hard one.
        fn channel_error(channel: ChannelId, error: ChannelError);
        /// What belonged to the connection is gone, and the client that closed it may know.
        fn left();
        /// Ends the connection.
        fn connection_error(error: ConnectionError);
        /// A message for a consumer; returns its delivery tag, or nothing where nobody takes it any
        /// more.
        fn deliver(channel: ChannelId, delivery: &Delivery<'_>) -> Option<u64>;
        /// A message for who fetches one; the same.
        fn get_ok(channel: ChannelId, delivery: &GetDelivery<'_>) -> Option<u64>;
        /// There is no message to fetch.
        fn get_empty(channel: ChannelId);
        /// A message that reached no queue goes back.
        fn return_message(channel: ChannelId, returned: &ReturnedMessage<'_>);
        /// A consumer is gone, and the client did not ask for that.
        fn cancel_notify(channel: ChannelId, consumer_tag: &ConsumerTag);
        /// What is left of several messages that came as one comes next.
        fn put_back(publish: Publish);
        /// The broker's word about a publish.
        fn confirm(channel: ChannelId, publish_seq: u64, confirm: Confirm);
        /// The same about so many in a row, from this one on.
        fn confirm_run(channel: ChannelId, first: u64, count: u64, confirm: Confirm);
        /// About so many bytes of deliveries are for a channel or a consumer that is gone.
        fn abandon_deliveries(bytes: usize);
        /// All connections together hold as much in waiting frames as they may.
        fn set_short(is_short: bool);
    }
    is_asked {
        /// Whether the client hears of a consumer's end.
        fn knows_cancel() -> bool;
        /// The lowest delivery tag of a consumer that is not settled.
        fn oldest_unacked(channel: ChannelId, consumer: u32) -> Option<u64>;
        /// The same of each consumer that has one.
        fn oldest_unacked_of_each(channel: ChannelId) -> HashMap<u32, u64>;
        /// What a consumer was given and its client has not settled: first number and count of each run.
        fn unacked_of(channel: ChannelId, consumer: u32) -> Vec<(u64, u64)>;
        /// What each consumer was given and its client has not settled: first number and count of each
        /// run.
        fn unacked_of_each(channel: ChannelId) -> HashMap<u32, Vec<(u64, u64)>>;
        /// The last delivery tag of a channel.
        fn last_delivery_tag(channel: ChannelId) -> u64;
        /// How many deliveries of a channel are not settled.
        fn unsettled_count(channel: ChannelId) -> u64;
        /// Bytes that were said to the client since it came, those that wait for its socket included.
        fn output_end() -> u64;
        /// How often bytes came from the client: what it says was among them by then.
        fn input_count() -> u64;
        /// Whether a channel waits for the answer to a request.
        fn is_waiting(channel: ChannelId) -> bool;
        /// Whether a channel hears of its publishes.
        fn is_confirming(channel: ChannelId) -> bool;
        /// How many publishes of a channel have no confirm.
        fn unconfirmed(channel: ChannelId) -> u64;
        /// The oldest of them.
        fn oldest_unconfirmed(channel: ChannelId) -> Option<u64>;
        /// About what channels and consumers cost in memory.
        fn standing_bytes() -> usize;
        /// Bytes of frames that wait for their channel's turn.
        fn waiting_bytes() -> usize;
        /// Whether all is over.
        fn is_finished() -> bool;
        /// Whether the connection is about to end.
        fn is_closing() -> bool;
        /// Whether it publishes, and an alarm holds it back.
        fn is_blocked() -> bool;
        /// How it logged in.
        fn mechanism() -> Option<Mechanism>;
        /// The negotiated limit of a frame; 0 is none.
        fn frame_max() -> u32;
        /// The negotiated limit of channels; 0 is none.
        fn channel_max() -> u16;
        /// The negotiated interval of heartbeats; 0 is none.
        fn heartbeat_ms() -> u64;
    }
}
