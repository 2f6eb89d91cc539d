{{- define "leveret.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains .Chart.Name .Release.Name) }}{{ $name = printf "%s-%s" .Release.Name .Chart.Name }}{{ end }}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "leveret.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leveret.labels" -}}
{{ include "leveret.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Where pods find each other: names that are there before a pod is ready, and stay when it moves. */}}
{{- define "leveret.domain" -}}
{{ include "leveret.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.cluster.domain }}
{{- end }}

{{- define "leveret.peers" -}}
{{- $peers := list }}
{{- range $number := until (int .Values.replicas) }}
{{- $peers = append $peers (printf "%s-%d.%s:%d" (include "leveret.name" $) $number (include "leveret.domain" $) (int $.Values.cluster.port)) }}
{{- end }}
{{- join "," $peers }}
{{- end }}
