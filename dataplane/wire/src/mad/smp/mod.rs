//! Subnet management packets and their attributes (IBA 14.2).
