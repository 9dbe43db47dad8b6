/** Objects that were removed, or in a dry run would be. Sizes are `bytes` that the file system has allocated. */
export interface Reclaimed {
  readonly images: number;
  readonly layers: number;
  readonly layerBytes: number;
  readonly files: number;
  readonly fileBytes: number;
  /** kept memory of paused sandboxes */
  readonly memoryImages: number;
  readonly memoryImageBytes: number;
}
