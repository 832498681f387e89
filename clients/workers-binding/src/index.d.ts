/** Where the platform is and who asks. */
export interface AiSettings {
  /** The platform's origin, such as `http://127.0.0.1:8787`; a trailing `/client/v4` is allowed. */
  baseUrl: string;
  /** 32 hexadecimal digits. */
  accountId: string;
  apiToken: string;
  /** Instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch;
  /** Further attempts after a failure that may pass; 2 unless it is given. */
  maxRetries?: number;
}

export interface RunOptions {
  /** Overrides `stream` of the input. */
  stream?: boolean;
  /** Answers with the `Response` as it came. */
  returnRawResponse?: boolean;
  /** Puts the request in the asynchronous queue. */
  queueRequest?: boolean;
  /** Requests with the same text go to the same replica, whose prefix cache they find. */
  sessionAffinity?: string;
  /** Requests with the same text run and cost once. */
  idempotencyKey?: string;
  extraHeaders?: Record<string, string>;
  signal?: AbortSignal;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens: number };
}

export interface ChatMessage {
  role: string;
  content: string | null | Array<{ type: "text"; text: string }>;
  name?: string;
  tool_call_id?: string;
  tool_calls?: unknown[];
}

export interface TextGenerationInput {
  prompt?: string;
  messages?: ChatMessage[];
  raw?: boolean;
  stream?: boolean;
  max_tokens?: number;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  seed?: number;
  stop?: string | string[] | null;
  response_format?: { type: "json_object" | "json_schema"; json_schema?: unknown };
  tools?: unknown[];
  tool_choice?: unknown;
  [field: string]: unknown;
}

export interface TextGenerationResult {
  response: string | object | null;
  tool_calls?: Array<{ id?: string; name: string; arguments: unknown }>;
  usage?: Usage;
}

export interface EmbeddingInput {
  text: string | string[];
  pooling?: "mean" | "cls";
  truncate_inputs?: boolean;
}

export interface EmbeddingResult {
  shape: [number, number];
  data: number[][];
  pooling: "mean" | "cls";
  usage?: Usage;
}

export interface RerankInput {
  query: string;
  contexts: Array<{ text: string }>;
  top_k?: number;
}

export interface RerankResult {
  response: Array<{ id: number; score: number }>;
  usage?: Usage;
}

export type ClassificationResult = Array<{ label: string; score: number }>;

export declare class AiError extends Error {
  readonly status: number;
  /** The number of the error in the Workers AI table. */
  readonly code?: number;
  readonly requestId?: string;
  readonly errors: Array<{ code: number; message: string }>;
}

export declare class Ai {
  constructor(settings: AiSettings);
  run(
    model: string,
    input: object,
    options: RunOptions & { returnRawResponse: true },
  ): Promise<Response>;
  run(
    model: string,
    input: TextGenerationInput & { stream: true },
    options?: RunOptions & { stream?: true },
  ): Promise<ReadableStream<Uint8Array>>;
  run(
    model: string,
    input: TextGenerationInput,
    options: RunOptions & { stream: true },
  ): Promise<ReadableStream<Uint8Array>>;
  run(model: string, input: EmbeddingInput, options?: RunOptions): Promise<EmbeddingResult>;
  run(model: string, input: RerankInput, options?: RunOptions): Promise<RerankResult>;
  run<Result = TextGenerationResult>(
    model: string,
    input: TextGenerationInput,
    options?: RunOptions,
  ): Promise<Result>;
  models(filter?: Record<string, string>): Promise<Array<Record<string, unknown>>>;
}

export declare function createAi(settings: AiSettings): Ai;

/** The JSON events of a stream, without `[DONE]`; throws `AiError` for one that is cut short. */
export declare function readEvents(
  stream: ReadableStream<Uint8Array>,
): AsyncGenerator<Record<string, any>, void, void>;
