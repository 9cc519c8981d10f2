//! The commands and replies of a remote end, as lines of text: a word and hexadecimal numbers.

use std::fmt::Write as _;

/// Defines an enum of lines, each with a word and numbers.
macro_rules! lines {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(
                $(#[$line_meta:meta])*
                $line:ident $word:literal { $($field:ident),* }
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$line_meta])* $line { $($field: u64),* } ),*
        }

        impl $name {
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

            /// `None` if the line is invalid.
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
    /// A command to a remote end. `at` is an offset in its memory; `prefix` and `guid` are the
    /// halves of a GID.
    pub enum Command {
        /// Select an entry of the GID table, and report address and memory: [`Reply::Hello`].
        Hello "hello" { gid_index },
        /// Create a queue pair in place of the previous one: [`Reply::Created`]. `service` is 0 for
        /// RC, 1 for UC, 2 for UD; `access` has bits of [`Access`](pollux_verbs::Access).
        Create "create" { service, pkey_index, access, qkey },
        /// Change to RTS, with this peer. `mtu`, `timeout` and `rnr_timer` are codes; `rq_psn` is
        /// the first PSN to receive, `sq_psn` the first to send; `depth` limits outstanding reads
        /// and atomics in each direction.
        Connect "connect" {
            qpn, prefix, guid, mtu, rq_psn, sq_psn, timeout, retries, rnr_retries, rnr_timer, depth
        },
        /// Attach the queue pair to a multicast group.
        Join "join" { prefix, guid },
        /// Fill memory with the [`pattern`](super::pattern) of a seed.
        Fill "fill" { at, bytes, seed },
        /// Compute the [`sum`](super::sum) of memory: [`Reply::Value`].
        Sum "sum" { at, bytes },
        /// Read eight bytes, as a number in native byte order: [`Reply::Value`].
        Word "word" { at },
        /// Post a receive.
        Recv "recv" { id, at, bytes },
        /// Post a request. `op` is a code of [`op`](super::op); `first` is immediate data, or the
        /// first operand of an atomic; `second` is the second operand.
        Send "send" { id, op, at, bytes, address, rkey, first, second },
        /// Wait for a completion: [`Reply::Completed`] or [`Reply::Nothing`].
        Poll "poll" { timeout_ms },
        /// Query the queue pair's state: [`Reply::Value`].
        State "state" {},
    }
}

lines! {
    pub enum Reply {
        Done "done" {},
        /// The end's GID, and the address, key and length of its memory.
        Hello "hello" { prefix, guid, address, rkey, bytes },
        Created "created" { qpn },
        Value "value" { value },
        /// A request has completed: `status` is an index in [`STATUSES`](super::STATUSES), `src_qp`
        /// is the source of a datagram.
        Completed "completed" { id, status, is_recv, bytes, has_imm, imm, src_qp },
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
