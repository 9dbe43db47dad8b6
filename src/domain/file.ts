/** Lower-case hexadecimal SHA-256. */
export const SHA256_PATTERN = "^[0-9a-f]{64}$";
