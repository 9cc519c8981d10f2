//! tshark reads every format of IP over InfiniBand and of the IP family, each in a datagram of the
//! link, and verifies every checksum in them.

mod link;
mod v4;
mod v6;
