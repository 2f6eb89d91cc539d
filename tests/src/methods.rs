//! Class and method numbers of AMQP 0-9-1 and RabbitMQ's extensions, as the tests write them on the
//! wire.

/// A method's class id and method id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method(pub u16, pub u16);

impl std::fmt::Debug for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

macro_rules! methods {
    ($($name:ident = $class:literal, $method:literal;)*) => {
        $(#[doc = concat!("Class ", $class, ", method ", $method, ".")] pub const $name: Method = Method($class, $method);)*

        /// The names of all of them.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

methods! {
    CONNECTION_START = 10, 10;
    CONNECTION_START_OK = 10, 11;
    CONNECTION_SECURE = 10, 20;
    CONNECTION_SECURE_OK = 10, 21;
    CONNECTION_TUNE = 10, 30;
    CONNECTION_TUNE_OK = 10, 31;
    CONNECTION_OPEN = 10, 40;
    CONNECTION_OPEN_OK = 10, 41;
    CONNECTION_CLOSE = 10, 50;
    CONNECTION_CLOSE_OK = 10, 51;
    CONNECTION_BLOCKED = 10, 60;
    CONNECTION_UNBLOCKED = 10, 61;
    CONNECTION_UPDATE_SECRET = 10, 70;
    CONNECTION_UPDATE_SECRET_OK = 10, 71;
    CHANNEL_OPEN = 20, 10;
    CHANNEL_OPEN_OK = 20, 11;
    CHANNEL_FLOW = 20, 20;
    CHANNEL_FLOW_OK = 20, 21;
    CHANNEL_CLOSE = 20, 40;
    CHANNEL_CLOSE_OK = 20, 41;
    ACCESS_REQUEST = 30, 10;
    ACCESS_REQUEST_OK = 30, 11;
    EXCHANGE_DECLARE = 40, 10;
    EXCHANGE_DECLARE_OK = 40, 11;
    EXCHANGE_DELETE = 40, 20;
    EXCHANGE_DELETE_OK = 40, 21;
    EXCHANGE_BIND = 40, 30;
    EXCHANGE_BIND_OK = 40, 31;
    EXCHANGE_UNBIND = 40, 40;
    EXCHANGE_UNBIND_OK = 40, 51;
    QUEUE_DECLARE = 50, 10;
    QUEUE_DECLARE_OK = 50, 11;
    QUEUE_BIND = 50, 20;
    QUEUE_BIND_OK = 50, 21;
    QUEUE_PURGE = 50, 30;
    QUEUE_PURGE_OK = 50, 31;
    QUEUE_DELETE = 50, 40;
    QUEUE_DELETE_OK = 50, 41;
    QUEUE_UNBIND = 50, 50;
    QUEUE_UNBIND_OK = 50, 51;
    BASIC_QOS = 60, 10;
    BASIC_QOS_OK = 60, 11;
    BASIC_CONSUME = 60, 20;
    BASIC_CONSUME_OK = 60, 21;
    BASIC_CANCEL = 60, 30;
    BASIC_CANCEL_OK = 60, 31;
    BASIC_PUBLISH = 60, 40;
    BASIC_RETURN = 60, 50;
    BASIC_DELIVER = 60, 60;
    BASIC_GET = 60, 70;
    BASIC_GET_OK = 60, 71;
    BASIC_GET_EMPTY = 60, 72;
    BASIC_ACK = 60, 80;
    BASIC_REJECT = 60, 90;
    BASIC_RECOVER_ASYNC = 60, 100;
    BASIC_RECOVER = 60, 110;
    BASIC_RECOVER_OK = 60, 111;
    BASIC_NACK = 60, 120;
    CONFIRM_SELECT = 85, 10;
    CONFIRM_SELECT_OK = 85, 11;
    TX_SELECT = 90, 10;
    TX_SELECT_OK = 90, 11;
    TX_COMMIT = 90, 20;
    TX_COMMIT_OK = 90, 21;
    TX_ROLLBACK = 90, 30;
    TX_ROLLBACK_OK = 90, 31;
}
