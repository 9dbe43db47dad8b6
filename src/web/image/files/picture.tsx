import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "../../data/problem.ts";
import { useLoaded } from "../../data/resource.ts";
import { Checkbox } from "../../parts/field.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { bytesText, countText } from "../../text/format.ts";
import { printable } from "../../text/printable.ts";
import type { ImageLink } from "../link.ts";
import { shownName } from "../paths.ts";
import { readWhole } from "./content.ts";
import type { PictureHeader } from "./picture-header.ts";

/** Largest picture that is decoded, in `bytes` of its file and in `pixels`. */
const FILE_BYTES_MAX = 33_554_432;
const PIXELS_MAX = 50_000_000;
/** Longest side of the canvas, in `pixels`; a larger picture is scaled while it is decoded. */
const SIDE_PIXELS_MAX = 4096;

interface PictureProps {
  readonly link: ImageLink;
  readonly header: PictureHeader;
  /** of the file, in `bytes` */
  readonly size: number;
}

/** A picture, drawn on a canvas: its bytes never become a document or an address. */
export function PictureView({ link, header, size }: PictureProps) {
  const refusal = refusalOf(header, size);
  return (
    <div class="image-picture-view relative stack fill gap-2 shrink">
      {refusal === null ? (
        <Picture link={link} header={header} />
      ) : (
        <>
          <PictureFacts header={header} />
          <ProblemNote problem={refusal} title="This picture cannot be shown" />
        </>
      )}
    </div>
  );
}

function PictureFacts({ header: { type, width, height } }: Pick<PictureProps, "header">) {
  const isMoving = type === "image/gif" || type === "image/webp";
  return (
    <p class="muted">
      {type.slice("image/".length).toUpperCase()} · {countText(width)} × {countText(height)} pixels
      {isMoving ? " · the first frame" : ""}
    </p>
  );
}

/** Large pictures are not decoded: a small file can hold one that fills the memory. */
function refusalOf({ width, height }: PictureHeader, size: number): Problem | null {
  if (width * height > PIXELS_MAX) {
    const megapixels = countText(Math.round((width * height) / 1e6));
    return new Problem(`It has ${megapixels} megapixels, and at most 50 are decoded. Download it to see it.`, {
      code: "page",
    });
  }
  if (size <= FILE_BYTES_MAX) return null;
  return new Problem(`Its file has ${bytesText(size)}, and at most 32 MiB are read. Download it to see it.`, {
    code: "page",
  });
}

function Picture({ link, header }: Omit<PictureProps, "size">) {
  const { image, path } = link;
  const [isWhole, setWhole] = useState(false);
  const { value, problem } = useLoaded<ImageBitmap>(`${image} ${path}`, async (signal) => {
    const bytes = await readWhole({ image, path }, FILE_BYTES_MAX, signal);
    return await decoded(bytes, header);
  });
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (value === undefined || canvas.current === null) return;
    canvas.current.width = value.width;
    canvas.current.height = value.height;
    canvas.current.getContext("2d")?.drawImage(value, 0, 0);
    return () => value.close();
  }, [value]);
  if (problem !== undefined) return <ProblemNote problem={problem} title="This picture cannot be shown" />;
  return (
    <>
      <div class="row wrap between gap-1-4 small tabular">
        <PictureFacts header={header} />
        <Checkbox label="Actual size" isChecked={isWhole} onChecked={setWhole} />
      </div>
      {value === undefined ? <Skeleton lines={6} label="Decoding the picture" /> : null}
      <div
        class={isWhole ? "image-picture fill image-picture-whole" : "image-picture fill"}
        tabIndex={0}
        role="group"
        aria-label="Picture"
      >
        <canvas
          ref={canvas}
          role="img"
          aria-label={`Picture ${printable(shownName(path))}`}
          hidden={value === undefined}
        />
      </div>
    </>
  );
}

async function decoded(bytes: Uint8Array<ArrayBuffer>, { type, width, height }: PictureHeader): Promise<ImageBitmap> {
  const scale = Math.min(1, SIDE_PIXELS_MAX / Math.max(width, height));
  const size = {
    resizeWidth: Math.max(1, Math.round(width * scale)),
    resizeHeight: Math.max(1, Math.round(height * scale)),
    resizeQuality: "high" as const,
  };
  try {
    // The type comes from the content, so that only the decoder of that type reads the bytes.
    return await createImageBitmap(new Blob([bytes], { type }), scale < 1 ? size : {});
  } catch (cause) {
    throw new Problem("Its content is damaged: the browser cannot decode it.", { code: "page", cause });
  }
}
