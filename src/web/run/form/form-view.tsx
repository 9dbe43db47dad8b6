import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";
import { answerOf } from "../../../client/client.ts";
import { isFocusFree } from "../../browser/focus.ts";
import { navigate, useRoute } from "../../browser/router.ts";
import { api } from "../../data/api.ts";
import { useResource } from "../../data/resource.ts";
import { useSession } from "../../data/session.ts";
import { PageHeader } from "../../parts/breadcrumbs.tsx";
import { Button } from "../../parts/button.tsx";
import { Checkbox } from "../../parts/field.tsx";
import { useForm } from "../../parts/form/use-form.ts";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { CommandFields } from "./command-fields.tsx";
import { CopyAs } from "./copy-as.tsx";
import { FilesField } from "./files-field.tsx";
import { MoreFields } from "./more-fields.tsx";
import { EMPTY_FORM, formOf, type RunForm, requestOf } from "./run-form.ts";

/** The form of a run: empty, on an image (`?image=`), or with the request of another run (`?from=`). */
export function FormView() {
  const { parameters } = useRoute();
  const from = parameters.get("from");
  const image = parameters.get("image");
  const request = useResource(from === null ? null : `operation ${from} request`, (signal) =>
    answerOf(api.v1.operations({ id: encodeURIComponent(from ?? "") }).request.get({ fetch: { signal } })),
  );
  const crumbs = [{ label: "Runs", href: "/runs" }, { label: "New run" }];
  if (from !== null && request.value === undefined) {
    return (
      <div class="run-form stack gap-4 shrink">
        <PageHeader heading="New run" crumbs={crumbs} />
        {request.problem === undefined ? (
          <Skeleton lines={6} />
        ) : (
          <ProblemNote problem={request.problem} title="The request of that run is no longer stored" />
        )}
      </div>
    );
  }
  const before = request.value?.kind === "instance" ? request.value : null;
  const filled = before === null ? EMPTY_FORM : formOf(before);
  return (
    <div class="run-form stack gap-4 shrink">
      <PageHeader heading="New run" crumbs={crumbs} />
      {before === null || (before.env_names ?? []).length === 0 ? null : (
        <p class="prose muted">The values of variables are not stored: enter them again.</p>
      )}
      {before?.truncated === true ? (
        <p class="prose muted">
          The request was long, and only its beginning is stored: check that nothing is missing.
        </p>
      ) : null}
      <Form key={`${from} ${image}`} initial={{ ...filled, ...(image === null ? {} : { image }) }} />
    </div>
  );
}

function Form({ initial }: { readonly initial: RunForm }) {
  const { form, set, update, problems, problem, isBusy, place, submit } = useForm({
    initial,
    requestOf,
    fields: FIELDS,
    send: async (request) => navigate(`/runs/${(await answerOf(api.v1.instances.post(request))).uuid}`),
  });
  const { may } = useSession();
  const isUploading = form.files.some(({ uuid }) => uuid === null);
  useFirstFocus(place);
  return (
    <form
      ref={place}
      class="run-form-fields stack gap-4"
      aria-label="New run"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isUploading) void submit();
      }}
    >
      <CommandFields form={form} set={set} problems={problems} />
      <FilesField
        files={form.files}
        onFiles={(change) => update((current) => ({ ...current, files: change(current.files) }))}
        problem={problems["files"]}
        mayUpload={may("files:write")}
      />
      <MoreFields form={form} set={set} problems={problems} mayUseNetwork={may("instances:network")} />
      <Checkbox
        label="Disposable"
        hint="Keep no files: only output and figures remain. Otherwise the result is a new image."
        isChecked={form.isDisposable}
        onChecked={(isDisposable) => set({ isDisposable })}
      />
      {problem === undefined ? null : <ProblemNote problem={problem} title="The run was not started" />}
      <FormEnd form={form} isBusy={isBusy} isUploading={isUploading} />
    </form>
  );
}

function useFirstFocus(place: RefObject<HTMLFormElement | null>): void {
  useEffect(() => {
    if (!isFocusFree()) return;
    const fields = [...(place.current?.querySelectorAll<HTMLInputElement>("input, textarea") ?? [])];
    // The fields of the link are filled in already.
    const [first] = fields;
    (fields.slice(0, 2).find(({ value }) => value === "") ?? first)?.focus();
  }, []);
}

interface FormEndProps {
  readonly form: RunForm;
  readonly isBusy: boolean;
  readonly isUploading: boolean;
}

function FormEnd({ form, isBusy, isUploading }: FormEndProps) {
  const { may } = useSession();
  return (
    <div class="row wrap gap-2-3">
      <Button tone="primary" type="submit" icon="run" isBusy={isBusy} disabled={isUploading || !may("instances:spawn")}>
        Run
      </Button>
      {isUploading ? <span class="muted">Uploading files.</span> : null}
      {may("instances:spawn") ? null : (
        <span class="muted">The token of this session lacks the scope instances:spawn.</span>
      )}
      <CopyAs form={form} />
    </div>
  );
}

/** Fields of the API that the form has. */
const FIELDS: ReadonlySet<string> = new Set([
  ...["image", "command", "cwd", "uid", "gid", "env", "files", "hostname", "stdin", "timeout", "truncate_output_at"],
  ...["resources.vcpus", "resources.memory_bytes", "resources.disk_bytes", "network", "tag"],
]);
