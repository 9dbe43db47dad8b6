import { useState } from "preact/hooks";
import { answerOf } from "../../../client/client.ts";
import type { Image, ImageStep } from "../../../client/types.ts";
import { navigate } from "../../browser/router.ts";
import { api, request } from "../../data/api.ts";
import { problemOf } from "../../data/problem.ts";
import { useResource } from "../../data/resource.ts";
import { Button, ButtonLink } from "../../parts/button.tsx";
import { Field, Select } from "../../parts/field.tsx";
import { ageText, shortId } from "../../text/format.ts";
import { printable } from "../../text/printable.ts";
import { type ImageLink, linkTo } from "../link.ts";

/** Largest number of listed ancestors. */
const ANCESTORS_MAX = 50;
const TAGGED_MAX = 100;
const ABOUT_CHARACTERS_MAX = 40;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

interface Choice {
  readonly value: string;
  readonly label: string;
}

const OTHER = "other";
const PARENT = "its parent";

/** Selects the image to compare with: the parent, another ancestor, a tagged one, or any by its name. */
export function BasePicker({ link }: { readonly link: ImageLink }) {
  const { image, fields } = link;
  const against = fields.get("against") ?? "";
  const [isOther, setOther] = useState(false);
  const { value } = useResource<Choice[]>(`against ${image}`, (signal) => choicesFor(image, signal));
  const offered = value ?? [{ value: "", label: PARENT }];
  const isKnown = offered.some((choice) => choice.value === against);
  const choices = [
    ...offered,
    ...(isKnown ? [] : [{ value: against, label: `image ${shortId(against)}` }]),
    { value: OTHER, label: "another image…" },
  ];
  const choose = (uuid: string) => {
    setOther(uuid === OTHER);
    if (uuid !== OTHER) navigate(linkTo(image, "changes", link.path, { against: uuid, side: fields.get("side") }));
  };
  return (
    <div class="image-tools image-against flex wrap items-start gap-2">
      <Select label="Compare with" value={isOther ? OTHER : against} choices={choices} onValue={choose} />
      {isOther ? <OtherImage onFound={choose} /> : null}
      {against === "" ? null : (
        <ButtonLink tone="quiet" href={linkTo(against, "changes", link.path, { against: image })} icon="compare">
          Other way round
        </ButtonLink>
      )}
    </div>
  );
}

function OtherImage({ onFound }: { readonly onFound: (uuid: string) => void }) {
  const [name, setName] = useState("");
  const [problem, setProblem] = useState("");
  const find = async (event: Event) => {
    event.preventDefault();
    const text = name.trim();
    if (text === "") return;
    if (UUID.test(text)) return onFound(text.toLowerCase());
    try {
      // The response redirects to the image, and the browser follows.
      const response = await request(`/v1/inspect/?tag=${encodeURIComponent(text.replace(/^tag:/, ""))}`);
      onFound(((await response.json()) as Image).uuid);
    } catch (error) {
      const { status, message } = problemOf(error);
      setProblem(status === 404 ? "No image has this tag." : message);
    }
  };
  return (
    <form class="image-other flex items-start gap-2" onSubmit={(event) => void find(event)}>
      <Field label="Tag or uuid" isMono value={name} onValue={setName} problem={problem} />
      <Button type="submit">Compare</Button>
    </form>
  );
}

async function choicesFor(image: string, signal: AbortSignal): Promise<Choice[]> {
  const fetch = { signal };
  const [steps, tagged] = await Promise.all([
    answerOf(api.v1.images({ uuid: image }).lineage.get({ query: { limit: ANCESTORS_MAX }, fetch })),
    answerOf(api.v1.images.get({ query: { tagged: true, limit: TAGGED_MAX }, fetch })),
  ]);
  // The parent is listed separately.
  const ancestors = steps.slice(2).filter(({ deleted }) => !deleted);
  const listed = new Set([...steps.map(({ uuid }) => uuid), image]);
  return [
    { value: "", label: steps.length === 1 ? "nothing: it has no parent" : PARENT },
    ...ancestors.map((step) => ({ value: step.uuid, label: `ancestor ${aboutStep(step)}` })),
    ...tagged
      .filter(({ uuid }) => !listed.has(uuid))
      .map(({ uuid, tag = "" }) => ({ value: uuid, label: `tag ${printable(tag)}` })),
  ];
}

function aboutStep({ uuid, tag, command, source, created_at: at }: ImageStep): string {
  const about = printable(tag ?? command?.join(" ") ?? source ?? shortId(uuid));
  const short = about.length > ABOUT_CHARACTERS_MAX ? `${about.slice(0, ABOUT_CHARACTERS_MAX)}…` : about;
  return `${short}, ${ageText(Date.parse(at), Date.now())}`;
}
