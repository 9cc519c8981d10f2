//! Errors of a partition file, each with its remedy.

use super::PARTITIONS_MAX;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: `{word}`: {problem}")]
pub struct PartitionError {
    pub file: String,
    /// The line number, from 1.
    pub line: usize,
    pub word: String,
    pub problem: PartitionProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionProblem {
    #[error("end the partition with ;")]
    Unfinished,
    #[error("begin the partition with its name, as in blue=0x8123, ipoib : ALL=full ;")]
    Name,
    #[error("give a key from 0x1 to 0x7fff; the bit of full membership is not in it")]
    PKey,
    #[error("another partition has this key; change one of them")]
    SameKey,
    #[error(
        "take ipoib, mtu=, rate=, sl=, scope=, Q_Key=, TClass=, FlowLabel=, indx0 or defmember="
    )]
    UnknownFlag,
    #[error("this flag needs an IPoIB group; put ipoib before it, or remove it")]
    NeedsIpoib,
    #[error("give {0}")]
    Value(&'static str),
    #[error(
        "name a port by its GUID as in 0x0002c903000010f1, or take ALL, ALL_CAS, ALL_SWITCHES, \
         ALL_ROUTERS or SELF"
    )]
    Member,
    #[error("take full, limited or both")]
    Membership,
    #[error("a subnet can have {} partitions; remove some", PARTITIONS_MAX)]
    TooMany,
}
