//! Segmented management transactions (IBA 13.6).
