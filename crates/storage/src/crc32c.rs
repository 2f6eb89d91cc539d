//! CRC32C, the checksum of everything that is stored and of all that nodes send to each other.
//!
//! Cost: 0.04 ns a byte in warm caches by the processor's own instruction.

pub use ::crc32c::{crc32c, crc32c_append, crc32c_combine};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_iscsi_however_it_is_taken() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of its catalogue");
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
        for cut in [0, 1, 7, 8, 63, 64, 255, 256, 1000, 4095, 65_537, bytes.len()] {
            let (before, behind) = bytes.split_at(cut);
            assert_eq!(crc32c_append(crc32c(before), behind), crc32c(&bytes), "cut at {cut}");
            assert_eq!(crc32c_combine(crc32c(before), crc32c(behind), behind.len()), crc32c(&bytes), "cut at {cut}");
            let bit_by_bit = behind.iter().take(300).fold(!crc32c(before), |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
            });
            assert_eq!(crc32c_append(crc32c(before), &behind[..behind.len().min(300)]), !bit_by_bit, "cut at {cut}");
        }
    }
}
