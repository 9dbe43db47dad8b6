/** Default of `truncate_output_at`, in `bytes` per stream. */
export const OUTPUT_BYTES_DEFAULT = 1_048_576;
/** Upper bound of `truncate_output_at`, in `bytes` per stream. */
export const OUTPUT_BYTES_MAX = 10_485_760;

export const OUTPUT_STREAMS = ["stdout", "stderr"] as const;
export type OutputStream = (typeof OUTPUT_STREAMS)[number];
