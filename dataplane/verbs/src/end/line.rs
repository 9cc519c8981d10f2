//! What an end is told and what it answers, as lines of text: a word, and numbers in hexadecimal.

use std::fmt::Write as _;

/// Makes an enum of lines, each with its word and its numbers.
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

            /// Reads a line; none if it makes no sense.
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
    /// What an end is told to do.
    pub enum Command {
        /// Say who you are, and be that from now on: [`Reply::Hello`].
        Hello "hello" {
            /// An entry of the GID table.
            gid_index,
        },
        /// Make a queue pair in place of the one there was: [`Reply::Created`].
        Create "create" {
            /// 0: RC, 1: UC, 2: UD.
            service,
            /// Which P_Key.
            pkey_index,
            /// What peers may do: bits of [`Access`](crate::Access).
            access,
            /// Of datagrams.
            qkey,
        },
        /// Go to RTS, with this peer.
        Connect "connect" {
            /// The peer's queue pair.
            qpn,
            /// The peer's GID, upper half.
            prefix,
            /// And lower half.
            guid,
            /// Code of the path MTU.
            mtu,
            /// First sequence number to come.
            rq_psn,
            /// First one to go.
            sq_psn,
            /// Code of the time-out.
            timeout,
            /// How often to repeat.
            retries,
            /// And when the peer was not ready.
            rnr_retries,
            /// Code of how long it is to wait then.
            rnr_timer,
            /// Reads and atomics, both ways.
            depth,
        },
        /// Let the queue pair receive what goes to a group.
        Join "join" { /// The group's GID, upper half.
            prefix, /// And lower half.
            guid },
        /// Fill memory with bytes made of a seed: those of [`pattern`](super::pattern).
        Fill "fill" { /// First byte.
            at, /// How many.
            bytes, /// What of.
            seed },
        /// Sum memory up: [`Reply::Value`], as [`sum`](super::sum) does.
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
            /// What: [`op`](super::op).
            op,
            /// First byte of ours.
            at,
            /// How many.
            bytes,
            /// First byte of the peer's.
            address,
            /// Its key.
            rkey,
            /// Immediate data, or the first operand of an atomic.
            first,
            /// The second.
            second,
        },
        /// Wait for a completion: [`Reply::Completed`] or [`Reply::Nothing`].
        Poll "poll" { /// So many milliseconds at the most.
            patience_ms },
        /// Say what state the queue pair is in: [`Reply::Value`].
        State "state" {},
    }
}

lines! {
    /// What an end answers.
    pub enum Reply {
        /// It is done.
        Done "done" {},
        /// Who the end is.
        Hello "hello" {
            /// Its GID, upper half.
            prefix,
            /// And lower half.
            guid,
            /// Where its memory begins.
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
            /// How: a place in [`STATUSES`](super::STATUSES).
            status,
            /// Whether it was a receive.
            is_recv,
            /// Bytes received.
            bytes,
            /// Whether there is immediate data.
            has_imm,
            /// That.
            imm,
            /// The sender's queue pair, of datagrams.
            src_qp,
        },
        /// Nothing has, for so long.
        Nothing "nothing" {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_nonsense_does_not() {
        let command = Command::Fill { at: 1, bytes: u64::MAX, seed: 0xab };
        assert_eq!(command.line(), "fill 1 ffffffffffffffff ab");
        assert_eq!(Command::parse(&command.line()), Some(command));
        assert_eq!(Reply::parse("nothing"), Some(Reply::Nothing {}));
        for line in ["", "fil 1 2 3", "fill 1 2", "fill 1 2 3 4", "fill 1 2 x", "nothing 1"] {
            assert_eq!((Command::parse(line), Reply::parse(line)), (None, None), "{line}");
        }
    }
}
