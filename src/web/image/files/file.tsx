import type { ComponentChildren } from "preact";
import type { ListingItem } from "../../../client/types.ts";
import { navigate } from "../../browser/router.ts";
import { addressOf } from "../../data/api.ts";
import { useLoaded } from "../../data/resource.ts";
import { ButtonLink } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { Age, Bytes } from "../../parts/figure.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Segments } from "../../parts/segments.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { type ImageLink, linkWith, numberIn } from "../link.ts";
import { parentOf, savedName, shownText } from "../paths.ts";
import { contentPath, type FilePart, isText, readPart, TEXT_BYTES_MAX } from "./content.ts";
import { HexView } from "./hex.tsx";
import { keptItem, readListing } from "./listing-loader.ts";
import { modeText } from "./mode.ts";
import { PictureView } from "./picture.tsx";
import { type PictureHeader, pictureHeader } from "./picture-header.ts";
import { TextView } from "./text.tsx";

const FORMS = ["text", "picture", "hex"] as const;
type Form = (typeof FORMS)[number];
const FORM_LABELS: Readonly<Record<Form, string>> = { text: "Text", picture: "Picture", hex: "Hex" };

/** One file: as text, as a picture, or as bytes. */
export function FileView({ link }: { readonly link: ImageLink }) {
  const { image, path, fields } = link;
  const at = numberIn(fields, "at", 0) ?? 0;
  const isHex = fields.get("as") === "hex";
  // The hex view reads parts by itself.
  const start = isHex ? 0 : at;
  const { value, problem, isLoading, reload } = useLoaded<FilePart>(`${image} ${path} ${start}`, (signal) =>
    readPart({ image, path }, { start, count: TEXT_BYTES_MAX }, signal),
  );
  if (problem !== undefined)
    return <ProblemNote problem={problem} title="This file cannot be shown" onRetry={reload} />;
  if (value === undefined || isLoading) return <Skeleton lines={10} label="Loading the file" />;
  const picture = start === 0 ? pictureHeader(value.bytes) : null;
  const forms = FORMS.filter((form) => form !== "picture" || picture !== null);
  const chosen = forms.find((form) => form === fields.get("as"));
  const form = chosen ?? (picture !== null ? "picture" : isText(value.bytes) ? "text" : "hex");
  return (
    <div class="image-file stack gap-3 fill shrink">
      <FileHead link={link} size={value.size}>
        {forms.length < 2 || value.size === 0 ? null : (
          <Segments
            label="Show as"
            value={form}
            choices={forms.map((name) => ({ value: name, label: FORM_LABELS[name] }))}
            onValue={(name) => navigate(linkWith(link, { as: name, line: null, at: null }), { replace: true })}
          />
        )}
      </FileHead>
      <Content link={link} form={form} part={value} picture={picture} start={start} />
    </div>
  );
}

interface ContentProps {
  readonly link: ImageLink;
  readonly form: Form;
  readonly part: FilePart;
  readonly picture: PictureHeader | null;
  readonly start: number;
}

function Content({ link, form, part, picture, start }: ContentProps) {
  if (part.size === 0) return <Empty title="This file is empty" />;
  if (form === "hex") return <HexView link={link} size={part.size} />;
  if (form === "picture" && picture !== null) return <PictureView link={link} header={picture} size={part.size} />;
  return <TextView link={link} part={part} start={start} />;
}

function FileHead(props: { readonly link: ImageLink; readonly size: number; readonly children: ComponentChildren }) {
  const { link, size, children } = props;
  const { image, path } = link;
  // Reads the directory, also for a direct link: the way up then needs no request.
  const { value: item } = useLoaded<ListingItem | null>(`${image} ${path}`, async (signal) => {
    const cached = keptItem(image, path);
    if (cached === undefined) await readListing({ image, path: parentOf(path) }, signal, () => undefined);
    return cached ?? keptItem(image, path) ?? null;
  });
  return (
    <div class="image-tools row wrap gap-2">
      <p class="image-facts flex wrap gap-1-4 muted">
        <Bytes value={size} />
        {item === null ? null : <EntryFacts item={item} />}
      </p>
      {children}
      <ButtonLink icon="download" href={addressOf(contentPath(image, path))} download={savedName(path)}>
        Download
      </ButtonLink>
    </div>
  );
}

/** Facts of the file from its listing. Their space is reserved, so that nothing moves when they arrive. */
function EntryFacts({ item }: { readonly item: ListingItem | undefined }) {
  const target = item?.symlink_to;
  return (
    <>
      {target === undefined ? null : (
        <span>
          leads to <GuestText text={shownText(target, item?.symlink_to_base64)} isMono />
        </span>
      )}
      <code title={item === undefined ? undefined : `mode ${item.mode}`}>
        {item === undefined ? "\u00a0".repeat(10) : modeText(item.type, item.mode)}
      </code>
      <span class="number" title="owner and group">
        {item === undefined ? "\u00a0" : `${item.uid}:${item.gid}`}
      </span>
      <span>
        {item === undefined ? (
          "\u00a0".repeat(24)
        ) : (
          <>
            modified <Age at={item.modified_at} />
          </>
        )}
      </span>
    </>
  );
}
