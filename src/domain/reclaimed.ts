/** What was given back, or with a dry run would be. `bytes` are those that the file system has allocated. */
export interface Reclaimed {
  readonly images: number;
  readonly layers: number;
  readonly layerBytes: number;
  readonly files: number;
  readonly fileBytes: number;
}
