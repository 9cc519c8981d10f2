//! What is on a link, LRH to VCRC (IBA 5.2, 7, 8, 9).
