//! libFuzzer's entry to `everbyte_fuzz::vhost_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::vhost_messages(bytes));
