//! The commands and replies of an end as lines of text: a word and hexadecimal numbers.

use std::fmt::Write as _;

/// Defines an enum of lines, each with its word and its numbers.
macro_rules! lines {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(
                $(#[$line_meta:meta])*
                $line:ident $word:literal { $( $(#[$field_meta:meta])* $field:ident ),* $(,)? }
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$line_meta])* $line { $( $(#[$field_meta])* $field: u64 ),* } ),*
        }

        impl $name {
            /// The line.
            pub fn line(&self) -> String {
                match *self {
                    $( Self::$line { $($field),* } => {
                        #[allow(unused_mut, reason = "some lines are a word only")]
                        let mut line = String::from($word);
                        $( let _ = write!(line, " {:x}", $field); )*
                        line
                    } )*
                }
            }

            /// Parses a line; `None` if it is invalid.
            pub fn parse(line: &str) -> Option<Self> {
                let mut words = line.split_ascii_whitespace();
                let word = words.next()?;
                let mut number = || u64::from_str_radix(words.next()?, 16).ok();
                let parsed = match word {
                    $( $word => Self::$line { $( $field: number()? ),* }, )*
                    _ => return None,
                };
                words.next().is_none().then_some(parsed)
            }
        }
    };
}

lines! {
    /// A command to an end.
    pub enum Command {
        /// Select a GID and report address and memory: [`Reply::Hello`].
        Hello "hello" {
            /// An entry of the GID table.
            gid_index,
        },
        /// Create a queue pair in place of the previous one: [`Reply::Created`].
        Create "create" {
            /// 0: RC, 1: UC, 2: UD.
            service,
            /// Index in the P_Key table.
            pkey_index,
            /// Rights of peers: bits of [`Access`](pollux_verbs::Access).
            access,
            /// Q_Key of datagrams.
            qkey,
        },
        /// Go to RTS, with this peer.
        Connect "connect" {
            /// The peer's queue pair.
            qpn,
            /// The peer's GID, upper half.
            prefix,
            /// The peer's GID, lower half.
            guid,
            /// Code of the path MTU.
            mtu,
            /// First PSN to receive.
            rq_psn,
            /// First PSN to send.
            sq_psn,
            /// Code of the ACK timeout.
            timeout,
            /// Retry count.
            retries,
            /// RNR retry count.
            rnr_retries,
            /// Code of the RNR timer.
            rnr_timer,
            /// Outstanding reads and atomics in each direction.
            depth,
        },
        /// Attach the queue pair to a multicast group.
        Join "join" { /// The group's GID, upper half.
            prefix, /// And lower half.
            guid },
        /// Fill memory with the [`pattern`](super::pattern) of a seed.
        Fill "fill" { /// First byte.
            at, /// How many.
            bytes, /// The seed.
            seed },
        /// Compute the [`sum`](super::sum) of memory: [`Reply::Value`].
        Sum "sum" { /// First byte.
            at, /// How many.
            bytes },
        /// Read a word: [`Reply::Value`].
        Word "word" { /// First byte.
            at },
        /// Post a receive.
        Recv "recv" { /// Its number.
            id, /// First byte.
            at, /// How many.
            bytes },
        /// Post a request.
        Send "send" {
            /// Its number.
            id,
            /// The operation: [`op`](super::op).
            op,
            /// First local byte.
            at,
            /// How many.
            bytes,
            /// Address at the peer.
            address,
            /// Its key.
            rkey,
            /// Immediate data, or the first operand of an atomic.
            first,
            /// The second.
            second,
        },
        /// Wait for a completion: [`Reply::Completed`] or [`Reply::Nothing`].
        Poll "poll" { /// Milliseconds, at most.
            timeout_ms },
        /// Query the queue pair's state: [`Reply::Value`].
        State "state" {},
    }
}

lines! {
    /// A reply of an end.
    pub enum Reply {
        /// Success.
        Done "done" {},
        /// The end's address and memory.
        Hello "hello" {
            /// Its GID, upper half.
            prefix,
            /// And lower half.
            guid,
            /// The address of its memory.
            address,
            /// The memory's key.
            rkey,
            /// Its length.
            bytes,
        },
        /// The queue pair's number.
        Created "created" { /// It.
            qpn },
        /// A number.
        Value "value" { /// It.
            value },
        /// A request has completed.
        Completed "completed" {
            /// Its number.
            id,
            /// An index in [`STATUSES`](super::STATUSES).
            status,
            /// Whether it was a receive.
            is_recv,
            /// Bytes received.
            bytes,
            /// Whether there is immediate data.
            has_imm,
            /// The immediate data.
            imm,
            /// The source QPN of a datagram.
            src_qp,
        },
        /// No completion within the timeout.
        Nothing "nothing" {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_and_invalid_ones_refused() {
        let command = Command::Fill { at: 1, bytes: u64::MAX, seed: 0xab };
        assert_eq!(command.line(), "fill 1 ffffffffffffffff ab");
        assert_eq!(Command::parse(&command.line()), Some(command));
        assert_eq!(Reply::parse("nothing"), Some(Reply::Nothing {}));
        for line in ["", "fil 1 2 3", "fill 1 2", "fill 1 2 3 4", "fill 1 2 x", "nothing 1"] {
            assert_eq!((Command::parse(line), Reply::parse(line)), (None, None), "{line}");
        }
    }
}
